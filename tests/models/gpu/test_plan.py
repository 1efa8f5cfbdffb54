"""Shapes and the memory plan of a GPU, as arithmetic: nothing is allocated."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from triolet.loadtest.device.random_model import LLAMA_8B
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.errors import DoesNotFit, UnsupportedDevice, UnsupportedModel
from triolet.models.gpu.buckets import Buckets, GpuSizes, row_sizes, token_sizes
from triolet.models.gpu.load import gpu_sizes
from triolet.models.gpu.memory import plan_on_gpu
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.working_memory import decoder_layout
from triolet.models.memory_plan import GIB
from triolet.protocol.settings import MIB, AdapterPlaces, EngineSettings
from triolet.protocol.steps import MemoryPlan

from ..parity_variants import VARIANTS, spec_of
from .gpu_house import LATENT

NO_ADAPTERS = AdapterPlaces()


def test_sizes() -> None:
    assert row_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert row_sizes(27) == [1, 2, 4, 8, 16, 24, 27]
    assert row_sizes(1) == [1]
    assert token_sizes(12) == [12]
    assert token_sizes(200) == [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 200]


@given(st.integers(1, 600), st.integers(1, 70), st.data())
def test_every_step_has_a_shape_that_was_compiled(max_tokens: int, max_chunks: int, data: st.DataObject) -> None:
    buckets = Buckets(max_tokens=max_tokens, max_chunks=max_chunks, max_rows=max_tokens, adapters=True)
    chunks = data.draw(st.integers(1, min(max_chunks, max_tokens)))
    lengths = [1] * chunks
    for _ in range(data.draw(st.integers(0, 8))):
        lengths[data.draw(st.integers(0, chunks - 1))] += data.draw(st.integers(0, (max_tokens - sum(lengths)) // 2))
    rows = data.draw(st.integers(0, sum(lengths)))
    strict, adapted = data.draw(st.booleans()), data.draw(st.booleans())
    shape, every = buckets.shape(lengths, rows, strict=strict, adapted=adapted), buckets.every()
    assert shape.tokens >= sum(lengths)
    assert shape.chunks >= chunks
    assert shape.rows >= rows
    assert shape.layers in {other.layers for other in every}
    assert shape.head in {other.head for other in every}
    if not shape.decode:
        assert shape.tokens <= max(16, sum(lengths) * 5 // 4 + 16)


def test_shapes_are_arithmetic() -> None:
    check = "import sys, triolet.models.gpu.buckets; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def plan(
    memory: int, quantize: str = "none", adapters: AdapterPlaces = NO_ADAPTERS, **asked: Any
) -> MemoryPlan:  # Any: whatever an option may be
    buckets = Buckets(max_tokens=512, max_chunks=64, max_rows=256, adapters=adapters.count > 0)
    sizes = GpuSizes(quantize=quantize, max_model_len=8192, buckets=buckets, adapters=adapters)
    return plan_on_gpu(RehearsalDevice(memory), LLAMA_8B, sizes, **asked)


def test_kv_gets_what_is_left() -> None:
    whole = plan(80 * GIB)
    assert whole.weights_bytes == pytest.approx(2 * LLAMA_8B.parameters, rel=1e-3)
    assert whole.kv_bytes == whole.num_blocks * 64 * 32 * 2 * 8 * 128 * 2
    taken = whole.weights_bytes + whole.workspace_bytes + whole.kv_bytes
    assert 0 <= 0.9 * 80 * GIB - taken < 8 * MIB + 1
    assert plan(80 * GIB, gpu_memory=0.5).kv_bytes == pytest.approx(whole.kv_bytes - 32 * GIB, abs=8 * MIB)
    assert plan(80 * GIB, gpu_memory=float(40 * GIB)) == plan(80 * GIB, gpu_memory=0.5)
    assert plan(80 * GIB, kv_cache_memory=2 * GIB).kv_bytes == 2 * GIB
    little = plan(80 * GIB, kv_cache_memory=512 * MIB, shortest=1024)  # half of a full-length sequence
    assert (little.num_blocks, little.sequences_at_full_length) == (64, 1.0)
    assert plan(80 * GIB, quantize="int4").weights_bytes < 0.4 * whole.weights_bytes


def test_adapters_have_their_room_before_kv() -> None:
    """Rank 16 on all matrices is 84 MB; rank 17 is stored as 32. Graphs with their launches are a second set."""
    sizes = {
        (count, rank): plan(80 * GIB, adapters=AdapterPlaces(count=count, rank=rank)).workspace_bytes
        for count, rank in ((0, 16), (1, 16), (9, 16), (9, 17))
    }
    place = 2 * 32 * 16 * (3 * 4096 + 6144 + 2 * 4096 + 2 * 4096 + 28672 + 14336 + 4096)
    assert sizes[9, 16] - sizes[1, 16] == 8 * place
    assert sizes[1, 16] - sizes[0, 16] > place
    assert sizes[9, 17] - sizes[9, 16] == pytest.approx(9 * place, rel=0.01)
    with pytest.raises(DoesNotFit, match="buffers, graphs and LoRA adapters \\(--max-loras\\)"):
        plan(40 * GIB, adapters=AdapterPlaces(count=512))


LLAMA_70B = replace(LLAMA_8B, hidden_size=8192, layers=alike(80), num_heads=64, mlp_size=28672)


@pytest.mark.parametrize(
    ("memory", "spec", "asked", "step"),
    [
        (141 * GIB, LLAMA_8B, {}, (256, 2048)),
        (40 * GIB, LLAMA_8B, {}, (256, 2048)),
        (24 * GIB, LLAMA_8B, {}, (128, 1024)),
        (12 * GIB, LLAMA_8B, {"quantize": "int4"}, (64, 512)),
        (80 * GIB, LLAMA_70B, {"quantize": "fp8"}, (64, 512)),  # the weights leave 5 GB
        (141 * GIB, LLAMA_70B, {"quantize": "fp8"}, (256, 2048)),
        (141 * GIB, LLAMA_8B, {"gpu_memory": float(24 * GIB)}, (128, 1024)),
        (141 * GIB, LLAMA_8B, {"max_running": 7}, (7, 2048)),
        (141 * GIB, LLAMA_8B, {"kv_cache_memory": 105 * GIB}, (128, 1024)),  # that and the weights leave 7 GB
        (12 * GIB, LLAMA_8B, {"quantize": "int4", "max_step_tokens": 8192, "max_running": 1000}, (1000, 8192)),
    ],
)
def test_steps_are_as_large_as_the_device_suits(
    memory: int, spec: ModelSpec, asked: dict[str, Any], step: tuple[int, int]
) -> None:
    buckets = gpu_sizes(spec, EngineSettings(model="", **asked), RehearsalDevice(memory)).buckets
    assert (buckets.chunks, buckets.tokens[-1]) == step
    assert buckets.rows[-1] == max(256, step[0])


def test_float32_takes_four_bytes_where_bfloat16_takes_two() -> None:
    device, settings = RehearsalDevice(200 * GIB), EngineSettings(model="", max_running=8, max_step_tokens=64)
    narrow, wide = (gpu_sizes(LLAMA_8B, replace(settings, dtype=dtype), device) for dtype in ("bfloat16", "float32"))
    plans = [plan_on_gpu(device, LLAMA_8B, sizes) for sizes in (narrow, wide)]
    assert plans[1].weights_bytes == 2 * plans[0].weights_bytes
    of_block = [plan.kv_bytes // plan.num_blocks for plan in plans]
    assert of_block[1] == 2 * of_block[0]
    buffers = [decoder_layout(LLAMA_8B, sizes, device).entries for sizes in (narrow, wide)]
    for name in ("residual", "hidden", "qkv", "mixed", "normed", "gate_up", "gated", "last_normed"):
        assert [entries[name][1] for entries in buffers] == [torch.bfloat16, torch.float32], name


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({}, {"quantize": "int8"}, "--quantize int8: the GPU's quantised weights have no float32 activations"),
        ({}, {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: with --dtype float32 the cache is so too"),
        ({"num_heads": 64, "num_kv_heads": 1}, {}, "num_attention_heads / num_key_value_heads = 64: .* up to 32"),
        ({"family": "deepseek_v3", "latent": LATENT.latent}, {}, "latent attention = 'deepseek_v3': .* in bfloat16"),
    ],
)
def test_what_has_no_float32_is_refused(changes: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    asked = EngineSettings(model="", dtype="float32", **settings)
    with pytest.raises((UnsupportedDevice, UnsupportedModel), match=message):
        gpu_sizes(replace(LLAMA_8B, **changes), asked, RehearsalDevice())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_structure_is_planned(variant: str) -> None:
    spec = spec_of(variant, random.Random(variant))
    device = RehearsalDevice(GIB)
    found = plan_on_gpu(device, spec, gpu_sizes(spec, EngineSettings(model=""), device))
    assert found.weights_bytes >= 2 * spec.parameters


@pytest.mark.parametrize(
    ("memory", "changes", "message"),
    [
        (16 * GIB, {}, "raise --gpu-memory, or lower --max-model-len"),
        (80 * GIB, {"gpu_memory": float(90 * GIB)}, "only 80GiB of the GPU's 80GiB are free"),
        (80 * GIB, {"gpu_memory": 0.0}, "--gpu-memory 0.0: give a share"),
        (80 * GIB, {"kv_cache_memory": 70 * GIB}, "--kv-cache-memory 70GiB does not fit"),
        (
            80 * GIB,
            {"kv_cache_memory": 64 * MIB},
            "holds 512 tokens, but one sequence may have 8192: raise it to 1024MiB or pass --max-model-len 512",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(memory: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((DoesNotFit, UnsupportedDevice), match=message):
        plan(memory, **changes)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("hidden_size = 80", {"hidden_size": 80}),
        ("num_attention_heads * head_dim = 80", {"num_heads": 1, "num_kv_heads": 1, "head_dim": 80}),
        ("intermediate_size = 80", {"mlp_size": 80}),
    ],
)
def test_inputs_that_int4_cannot_group_are_named(key: str, changes: dict[str, int]) -> None:
    settings = EngineSettings(model="", quantize="int4")
    with pytest.raises(UnsupportedModel, match=re.escape(f"{key}: int4 weights come in groups of 32")):
        gpu_sizes(replace(LLAMA_8B, **changes), settings, RehearsalDevice())
