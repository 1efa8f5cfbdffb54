"""What fits into memory: block counts, plain refusals, and what the machine says it has."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from msgspec import convert
from msgspec.structs import replace

from triolet.kernels.gpu.table import PAGE_TOKENS
from triolet.kernels.paged_attention.cache import BLOCK_TOKENS
from triolet.models import load
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.cpu.load import plan_on_cpu
from triolet.models.cpu.memory import CpuSizes
from triolet.models.errors import CheckpointError, DoesNotFit, UnsupportedDevice
from triolet.models.host import available_memory, usable_cores
from triolet.models.load import load_model
from triolet.models.memory_plan import GIB, choose_num_blocks, size
from triolet.protocol.settings import BLOCK_SIZE, MIB, EngineSettings
from triolet.protocol.steps import MemoryPlan

NEEDS: dict[str, Any] = {
    "available": 8 * GIB,
    "fixed_bytes": 2 * GIB,
    "block_bytes": MIB,
    "max_model_len": 4096,  # 64 blocks
    "shortest": 4096,
    "max_running": 4,
    "kv_cache_memory": None,
}


def test_default_share() -> None:
    assert choose_num_blocks(**NEEDS) == 4 * 64  # what 4 sequences could use
    assert choose_num_blocks(**{**NEEDS, "max_running": 1000}) == 3 * 1024  # half of what is free
    assert choose_num_blocks(**{**NEEDS, "max_model_len": 5 * 1024 * 64}) == 5 * 1024  # one sequence, though over half


def test_explicit_amount() -> None:
    assert choose_num_blocks(**{**NEEDS, "kv_cache_memory": 100 * MIB + 5}) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixed_bytes": 9 * GIB}, "needs 9216MiB .* only 8192MiB are available: use --quantize int8"),
        (
            {"kv_cache_memory": 63 * MIB},
            "holds 4032 tokens, .* may have 4096: raise it to 64MiB or pass --max-model-len 4032",
        ),
        ({"shortest": 1024, "kv_cache_memory": 15 * MIB}, "holds 960 tokens, .* may have 1024: raise it to 16MiB"),
        ({"kv_cache_memory": 7 * GIB}, "--kv-cache-memory 7168MiB does not fit: 6144MiB are left"),
        (
            {"max_model_len": 6 * 1024 * 64, "shortest": 6 * 1024 * 64},
            "one sequence of 393216 tokens needs .* pass --max-model-len 353856 or less",
        ),
    ],
)
def test_refusals_name_numbers_and_flags(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DoesNotFit, match=message):
        choose_num_blocks(**{**NEEDS, **change})


def test_the_suggested_length_fits() -> None:
    assert choose_num_blocks(**{**NEEDS, "max_model_len": 353856, "shortest": 353856}) == 353856 // 64


def test_a_length_that_nobody_asked_for_may_shrink_to_what_fits() -> None:
    assert choose_num_blocks(**{**NEEDS, "shortest": 1024, "kv_cache_memory": 63 * MIB}) == 63
    longest = {"max_model_len": 6 * 1024 * 64, "shortest": 1024}
    assert choose_num_blocks(**{**NEEDS, **longest}) == 353856 // 64


def test_sizes_are_written_as_flags_are() -> None:
    assert [size(value) for value in (0, 1, 5 * MIB + 1, 11 * MIB + 1, 10 * GIB)] == [
        "0KiB",
        "1KiB",
        "5121KiB",
        "12MiB",
        "10GiB",
    ]


def write(folder: Path, **options: object) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 20, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 1000, "rms_norm_eps": 1e-5, **options,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({"x": np.zeros(4, np.float16)}, folder / "model.safetensors")
    return folder


def test_blocks_are_of_one_size_everywhere() -> None:
    """The scheduler counts in the protocol's blocks; the kernels have them compiled in."""
    assert BLOCK_SIZE == BLOCK_TOKENS == PAGE_TOKENS


def test_plan_of_a_checkpoint(tmp_path: Path) -> None:
    """From the headers alone: the weights are not even the model's."""
    checkpoint = open_checkpoint(write(tmp_path))
    assert checkpoint.widened_bytes == 16

    def plan(**changes: object) -> tuple[CpuSizes, MemoryPlan]:
        fields = {"max_running": 2, "max_step_tokens": 64, "threads": 1, "dtype": "bfloat16", **changes}
        return plan_on_cpu(checkpoint, convert({"model": str(tmp_path), **fields}, EngineSettings), GIB)

    sizes, memory = plan()
    assert (sizes.max_model_len, sizes.max_logit_rows) == (1000, 64)
    assert sizes.num_blocks == memory.num_blocks == 2 * 16
    assert memory.sequences_at_full_length == 2
    assert memory.kv_bytes % memory.num_blocks == 0
    assert plan(dtype="float32")[1].kv_bytes == 2 * memory.kv_bytes
    _, narrow = plan(kv_cache_dtype="int8")  # a head of 4, padded to 32, + 2 scales
    assert narrow.kv_bytes * 2 * 32 == memory.kv_bytes * (32 + 4)
    with pytest.raises(DoesNotFit, match=r"holds 960 tokens, .* may have 1000: .* or pass --max-model-len 960"):
        plan(kv_cache_memory=15 * memory.kv_bytes // memory.num_blocks)
    short, _ = plan(max_model_len=65)
    assert (short.max_model_len, short.num_blocks) == (65, 4)
    with pytest.raises(DoesNotFit, match="--max-model-len 1001 is beyond the model's context of 1000"):
        plan(max_model_len=1001)
    for name in ("max_model_len", "max_running", "max_step_tokens", "threads"):
        with pytest.raises(UnsupportedDevice, match=f"--{name.replace('_', '-')} 0: must be at least 1"):
            plan(**{name: 0})


@pytest.mark.parametrize("asked", [None, 4000])
def test_a_context_beyond_the_kv_memory_is_shortened_unless_it_was_asked_for(tmp_path: Path, asked: int | None) -> None:
    checkpoint = open_checkpoint(write(tmp_path, max_position_embeddings=4000))
    settings = EngineSettings(model=str(tmp_path), threads=1, dtype="bfloat16", max_running=2)
    _, whole = plan_on_cpu(checkpoint, settings, GIB)
    little = replace(settings, kv_cache_memory=20 * whole.kv_bytes // whole.num_blocks, max_model_len=asked)
    if asked:
        with pytest.raises(DoesNotFit, match="pass --max-model-len 1280"):
            plan_on_cpu(checkpoint, little, GIB)
        return
    sizes, memory = plan_on_cpu(checkpoint, little, GIB)
    assert (sizes.max_model_len, sizes.num_blocks, memory.sequences_at_full_length) == (1280, 20, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "--device cuda: torch sees no GPU.* or pass --device cpu"),
        ({"device": "cpu", "kernels": "interpret"}, "--kernels interpret: .* pass --device cuda"),
        ({"quantize": "fp8"}, "--quantize fp8: the CPU runs none, int8, int4 and int4-128"),
        ({"quantize": "fp8-block"}, "--quantize fp8-block: the CPU runs none, int8, int4 and int4-128"),
        ({"quantize": "w8a8"}, "--quantize w8a8: the CPU runs none, int8, int4 and int4-128"),
        ({"dtype": "float64"}, "--dtype float64"),
    ],
)
def test_unsupported_devices_and_formats(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDevice, match=message):
        load_model(EngineSettings(model=str(write(tmp_path)), **options))


def test_a_gpu_without_torch_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVIDIA driver does not mean that the `cuda` extra is installed."""
    monkeypatch.setattr(load, "has_nvidia_driver", lambda: True)
    for name in ("torch", "triton"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = EngineSettings(model=str(write(tmp_path)), device="cuda")
    with pytest.raises(UnsupportedDevice, match=r"torch is not installed: run pip install '\.\[cuda\]'"):
        load_model(settings)
    with pytest.raises(UnsupportedDevice, match="--kernels interpret: torch is not installed"):
        load_model(replace(settings, kernels="interpret"))
    with pytest.raises(CheckpointError, match="embed_tokens"):  # it goes on to the CPU
        load_model(replace(settings, device="auto"))


def test_a_torch_that_cannot_be_imported_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CUDA libraries may be missing, or of another version."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(load, "has_nvidia_driver", lambda: True)
    settings = EngineSettings(model=str(write(tmp_path)), device="cuda")
    with pytest.raises(UnsupportedDevice, match=r"cannot be imported \(libcudart.* or pass --device cpu"):
        load_model(settings)
    with pytest.raises(CheckpointError, match="embed_tokens"):  # it goes on to the CPU
        load_model(replace(settings, device="auto"))


def fake_host(root: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n",
        "proc/self/cgroup": cgroup,
        **{f"cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


V2 = {"a/memory.max": "4000000\n", "a/memory.current": "1000000\n", "a/memory.stat": "anon 5\ninactive_file 300000\n"}
V1 = {
    "memory/a/b/memory.limit_in_bytes": "4000000",
    "memory/a/b/memory.usage_in_bytes": "3500000",
    "memory/a/b/memory.stat": "inactive_file 0\n",
}


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 8000 * 1024),
        ("0::/a/b\n", V2, 3_300_000),  # the parent's limit counts
        ("0::/a/b\n", {**V2, "a/b/memory.max": "max", "a/b/memory.current": "0", "a/b/memory.stat": ""}, 3_300_000),
        ("4:cpu:/x\n3:memory:/a/b\n0::/\n", V1, 500_000),
        ("0::/\n", {"memory.max": "9", "memory.current": "100", "memory.stat": "x 1"}, 0),
        # What processes have mapped is used: by the names of version 2 and of version 1.
        ("0::/a/b\n", V2 | {"a/memory.stat": "file_mapped 100000\ninactive_file 300000\n"}, 3_200_000),
        ("0::/a/b\n", V2 | {"a/memory.stat": "file_mapped 900000\ninactive_file 300000\n"}, 3_000_000),
        ("3:memory:/a/b\n", V1 | {"memory/a/b/memory.stat": "mapped_file 10\ninactive_file 30\n"}, 500_020),
    ],
)
def test_available_memory(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert available_memory(*fake_host(tmp_path, cgroup, files)) == expected


@pytest.mark.parametrize(("mapped", "shared", "expected"), [(3000, 1000, 6000), (1000, 3000, 8000), (9999, 0, 0)])
def test_mapped_files_are_in_use(tmp_path: Path, mapped: int, shared: int, expected: int) -> None:
    proc, cgroup = fake_host(tmp_path, "0::/\n", {})
    with (proc / "meminfo").open("a") as file:
        file.write(f"Mapped: {mapped} kB\nShmem: {shared} kB\n")
    assert available_memory(proc, cgroup) == expected * 1024


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3),  # as a container sees its own group
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),  # the parent's quota counts
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "400000", "cpu/x/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu,cpuacct:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 8),
        ("0::/\n", {"cpu.max": "what"}, 8),
    ],
)
def test_a_quota_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], expected: int
) -> None:
    def eight(_pid: int) -> set[int]:
        return set(range(8))

    monkeypatch.setattr("os.sched_getaffinity", eight)
    assert usable_cores(tmp_path, *fake_host(tmp_path, cgroup, files)) == expected


def test_usable_cores(tmp_path: Path) -> None:
    import os

    cpus = sorted(os.sched_getaffinity(0))
    assert 1 <= usable_cores() <= len(cpus)
    for cpu in cpus:  # all of them threads of one core
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text("0-7\n")
    free = fake_host(tmp_path, "0::/\n", {})
    assert usable_cores(tmp_path, *free) == 1
    assert usable_cores(tmp_path / "nowhere", *free) == len(cpus)
