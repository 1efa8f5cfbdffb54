"""Whole models on the rehearsal device whose matrices a checkpoint stores quantised: log probabilities of the float32
that its numbers stand for, and what the memory plan and the start report say of them."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from triolet.kernels.experts.routing import Routing
from triolet.loadtest.device.gpu_model_values import log_probabilities
from triolet.loadtest.device.random_stored import LAYOUTS, Held, held
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec, alike
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import DecoderWeights, load_weights, make_weights
from triolet.models.errors import UnsupportedDevice
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.device import Graph, Work
from triolet.models.gpu.fill import fill_weights
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.load import load_on_gpu, sizes_of
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.staging import Staging, host_tensor
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.gpu.stored import FLOAT32, StoredFormat, described_formats, stored_formats
from triolet.models.gpu.weights import place_weights, weights_layout
from triolet.models.memory_plan import size
from triolet.protocol.settings import MIB, EngineSettings
from triolet.protocol.steps import Chunk, ignore_progress

from ..checkpoint.gguf.cases import converted, metadata_of
from ..checkpoint.gguf.written import Tensor, plain, write_gguf
from ..checkpoint.test_fused import mxfp4, write
from .gpu_house import Driver, record

SPEC = ModelSpec(
    family="qwen2", vocab_size=120, hidden_size=256, layers=alike(1), num_heads=4, num_kv_heads=2, head_dim=64,
    mlp_size=256, norm_eps=1e-5, max_position=64,
)  # fmt: skip
SHARED = ExpertSpec(count=3, width=256, routing=Routing(chosen=2, normalised=True), shared_width=256)
CLAMPED = ExpertSpec(
    count=4, width=256, routing=Routing(chosen=2, scores="softmax of chosen"), biased=True, gate_limit=1.2,
    gate_slope=1.7, up_offset=1.0,
)  # fmt: skip
TURNED = replace(SPEC, rotary_dim=32, interleaved_rotary=True)  # so that rows of q and k have another order here
EXPERTS = {"experts: Q4_K, Q6_K": SHARED, "experts: MXFP4, bfloat16": CLAMPED}
# What is stored how: the last name that fits; "": in bfloat16.
MODELS = {
    "AWQ, GPTQ": {"proj": "AWQ", "o_proj": "compressed-tensors", "embed": "", "lm_head": ""},
    "Q4_K_M": {"proj": "Q4_K", "v_proj": "Q6_K", "down_proj": "Q6_K", "embed": "Q4_K", "lm_head": "Q6_K"},
    "Q8_0, Q4_0, Q4_1": {"proj": "Q8_0", "o_proj": "Q4_0", "down_proj": "Q4_1", "embed": "", "lm_head": "Q8_0"},
    "experts: Q4_K, Q6_K": {"": "", "proj": "Q4_K", "down_proj": "Q6_K", "shared": "Q8_0", "mlp.gate": "Q8_0"},
    "experts: MXFP4, bfloat16": {"": "", "experts": "MXFP4", "down_proj": ""},
}
AS_STORED = {
    "AWQ, GPTQ": {"0.qkv", "0.o", "0.gate_up", "0.down"},
    "Q4_K_M": {"0.o", "0.gate_up", "0.down", "head"},  # q, k and v are one matrix, and v is of another type
    "Q8_0, Q4_0, Q4_1": {"0.qkv", "0.o", "0.gate_up", "0.down", "head"},
    "experts: Q4_K, Q6_K": {
        "0.qkv", "0.o", "0.router", "0.gate_up", "0.down", "0.shared_gate_up", "0.shared_down",
    },
    "experts: MXFP4, bfloat16": {"0.gate_up"},
}  # fmt: skip
SIZES = {  # with which weights are near 1 / 16
    "AWQ": 0.25, "compressed-tensors": 0.25, "Q4_0": 0.25, "Q4_1": 0.2, "Q8_0": 0.0125, "Q4_K": 0.004, "Q6_K": 0.002,
    "MXFP4": 0.2,
}  # fmt: skip
# As for models in bfloat16 (test_formats.py): ten roundings of 2^-9 to logits of up to 16, of which a mean of eleven
# leaves a fifth.
TOLERANCE = 0.06


def spec_of(model: str) -> ModelSpec:
    if model not in EXPERTS:
        return TURNED if model.startswith("Q8_0") else SPEC
    return replace(SPEC, layers=(LayerSpec(experts=True),), mlp_size=0, experts=EXPERTS[model])


def weights(model: str, *, widened: bool = False, wrong: str = "") -> DecoderWeights:
    """Random codes; `widened`: their float32. The matrix with `wrong` in its name has its rows in another order."""

    def take(name: str, *shape: int) -> WeightArray:
        rng = np.random.default_rng(sum(name.encode()))
        if name.endswith("bias"):
            return rng.standard_normal(shape).astype(np.float32) / np.float32(8)
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        kind = next(layout for part, layout in reversed(MODELS[model].items()) if part in name)
        if not kind:
            values = rng.standard_normal(shape, dtype=np.float32) / np.float32(8)
            if wrong and wrong in name:
                values = values[::-1].copy()
            return values if widened else (values.view(np.uint32) >> 16).astype(np.uint16)
        layout = LAYOUTS[kind]
        matrix = held(layout, shape[0], shape[1], seed=sum(name.encode()), size=SIZES[kind])
        if wrong and wrong in name:
            found = matrix.codes(0, shape[0])
            matrix = Held(layout, found._replace(codes=found.codes[::-1].copy()))
        return matrix.rows(0, shape[0]) if widened else cast("WeightArray", matrix)

    return make_weights(spec_of(model), take)


@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities(model: str) -> None:
    spec, given, device = spec_of(model), weights(model), RehearsalDevice()
    formats = stored_formats(given)
    assert set(formats) == AS_STORED[model]
    buckets = Buckets(max_tokens=12, max_chunks=1, max_rows=12)
    sizes = GpuSizes(stored=formats, num_blocks=2, max_model_len=64, buckets=buckets)
    gpu = GpuStepper(GpuModel(device, spec, given, sizes))
    prompt = tuple(int(token) for token in np.random.default_rng(3).integers(0, SPEC.vocab_size, 12))
    driver = Driver(gpu)
    chunk = Chunk(sequence=1, start=0, count=12, blocks=(1,), sample=True, prompt_logprobs=True)
    driver.step(chunk, new=[record(1, prompt, prompt_logprobs=1)])
    found = np.array([score.logprob for step in driver.drain() for row in step for score in row.prompt_logprobs])
    gpu.close()
    assert np.abs(found - log_probabilities(spec, weights(model, widened=True), prompt)).mean() < TOLERANCE
    for wrong in ("down_proj", "k_proj", "up_proj", *(("gate_proj", "mlp.gate") if spec.experts else ())):
        other = log_probabilities(spec, weights(model, widened=True, wrong=wrong), prompt)
        assert np.abs(found - other).mean() > TOLERANCE, wrong
    if spec.interleaved_rotary:
        other = log_probabilities(replace(spec, interleaved_rotary=False), weights(model, widened=True), prompt)
        assert np.abs(found - other).mean() > TOLERANCE


class Filled(RehearsalDevice):
    """Each of its graphs takes memory."""

    def capture(self, work: Work) -> Graph:
        self._memory -= MIB
        return super().capture(work)


def test_a_file_is_planned_and_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tensors = dict[str, Tensor]()
    for pattern, shape in converted()["qwen2"]["tensors"].items():
        for layer in (0, 1) if "*" in pattern else (0,):
            sizes = tuple(int(size) for size in shape)
            tensors[pattern.replace("*", str(layer))] = plain(np.full(sizes, 0.01, np.float32))
    half = np.array([0.01], np.float16).tobytes()
    tensors["blk.1.ffn_down.weight"] = Tensor("Q4_0", (64, 128), (half + bytes(range(16))) * 64 * 4)
    tensors["blk.0.attn_output.weight"] = Tensor("Q5_1", (64, 64), (half + half + bytes(range(20))) * 64 * 2)
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata_of("qwen2"), tensors))
    device = Filled()
    settings = EngineSettings(model="", max_model_len=64, max_running=1, max_step_tokens=2, kv_cache_memory=1 << 20)
    stored = sizes_of(file, settings, device).stored
    assert list(stored) == ["1.down"]
    plain_bytes = weights_layout(file.spec, "none").size
    loaded = load_on_gpu(file, settings, device, ignore_progress)
    loaded.stepper.close()
    graphs = sizes_of(file, settings, device).buckets.graph_count
    assert f"graphs and libraries took {size(graphs * MIB)}; the guess was" in caplog.text
    assert loaded.dtype.startswith("GGUF Q4_0 as stored (")
    assert "GGUF Q5_1 widened to bfloat16 (" in loaded.dtype
    assert loaded.memory.weights_bytes == weights_layout(file.spec, "none", stored).size < plain_bytes
    wide = load_on_gpu(file, replace(settings, dtype="float32"), device, ignore_progress)
    wide.stepper.close()
    assert re.fullmatch(r"(GGUF Q\d_\d widened to float32 \(\w+\); ){2}other matrices in float32", wide.dtype)
    assert wide.kv_cache_dtype == "float32"
    assert wide.memory.weights_bytes == weights_layout(file.spec, FLOAT32).size > 1.9 * plain_bytes
    with pytest.raises(UnsupportedDevice, match="--quantize int8: the checkpoint is quantised already"):
        sizes_of(file, EngineSettings(model="", quantize="int8"), device)
    assert not sizes_of(file, EngineSettings(model="", dtype="bfloat16"), device).stored


def test_a_files_experts_run_as_they_are_stored_or_widened_as_asked(tmp_path: Path) -> None:
    """Widening them gives the file's numbers: of MXFP4 bfloat16 holds each."""
    file, device = write(tmp_path / "model", mxfp4()), RehearsalDevice()
    stored = sizes_of(file, EngineSettings(model=""), device).stored
    assert stored == {"0.gate_up": StoredFormat(8, 32, "bfloat16"), "0.down": StoredFormat(8, 0, "float32")}
    taken = sum(
        prod(shape) * dtype.itemsize
        for name, (shape, dtype) in weights_layout(file.spec, "none", stored).entries.items()
        if name.startswith(("0.gate_up.", "0.down."))
    )
    assert described_formats(file, stored) == f"MXFP4 as stored ({size(taken)}); other matrices in bfloat16"
    wide = sizes_of(file, EngineSettings(model="", dtype="bfloat16"), device).stored
    assert not wide
    assert described_formats(file, wide).startswith("MXFP4 widened to bfloat16 (")
    weights = load_weights(file)
    room, _ = place_weights(device, file.spec, "none", wide)
    with Staging(device) as staging:
        fill_weights(staging, file.spec, room, weights, "none", wide, ignore_progress)
    device.synchronize()
    assert weights.layers[0].experts is not None
    for index, expert in enumerate(weights.layers[0].experts.experts):
        assert torch.equal(room["0.down.weight"][index], host_tensor(expert.down))


def test_float32_holds_what_bfloat16_rounds() -> None:
    given, device = weights("Q4_K_M"), RehearsalDevice()
    room, _ = place_weights(device, SPEC, FLOAT32, {})
    with Staging(device) as staging:
        fill_weights(staging, SPEC, room, given, FLOAT32, {}, ignore_progress)
    device.synchronize()
    down = cast("StoredMatrix", given.layers[0].down)
    wanted = torch.from_numpy(down.rows(0, SPEC.hidden_size))
    assert torch.equal(room["0.down.weight"], wanted)
    assert not torch.equal(wanted.bfloat16().float(), wanted)
