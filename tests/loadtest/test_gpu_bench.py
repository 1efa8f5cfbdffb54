"""What the GPU suite measures, run once in the interpreter on small shapes: it runs, its figures add up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend

from triolet.kernels.gemm.gpu_table import Few
from triolet.loadtest.device import gpu_bench_attention as attention
from triolet.loadtest.device import gpu_bench_gemm as gemm
from triolet.loadtest.device import gpu_bench_rows as rows
from triolet.loadtest.device import gpu_tuning as tuning
from triolet.loadtest.device.gpu_case import Figures, Machine, Wrong
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_ragged import Form
from triolet.loadtest.device.gpu_random_model import LLAMA_8B, QWEN_600M
from triolet.loadtest.device.gpu_suite import PARTS, cases_of
from triolet.models.device import Growth
from triolet.models.gpu_rehearsal import RehearsalDevice
from triolet.models.rope_spec import RopeSpec
from triolet.models.spec import ModelSpec

MACHINE = Machine("cpu", 90, "a machine", {}, {"copy_gb_s": 100.0, "bf16_tflops": 1.0})
SMALL = Form(heads=2, kv_heads=1, size=64)
TINY_MODEL = ModelSpec(
    family="qwen3", vocab_size=120, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=64,
    mlp_size=64, norm_eps=1e-5, rope=RopeSpec(), max_position=192, qk_norm=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of timing, of which no GPU means none: the n-th work takes n microseconds."""
    done: list[int] = []

    def once(work: Callable[[], object]) -> float:
        work()
        done.append(1)
        return float(len(done))

    for module in (attention, gemm, rows, tuning):
        monkeypatch.setattr(module, "microseconds", once)
    monkeypatch.setattr(gemm, "best", lambda works: (min(works), 5.0, {}))
    monkeypatch.setattr(attention, "best", lambda works: (min(works), 5.0, {}))


def test_every_case_has_a_name_of_its_own() -> None:
    for part in PARTS:
        names = [case.name for case in cases_of(part, False)]
        assert names
        assert len(set(names)) == len(names)


def test_attention_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "EVEN", [(1, 128)] * 2)
    monkeypatch.setattr(attention, "Form", lambda cache: Form(heads=2, kv_heads=1, size=64, cache=cache))
    monkeypatch.setattr(attention, "LLAMA", SMALL)
    monkeypatch.setattr(attention, "BACKENDS", {"math": SDPBackend.MATH})
    monkeypatch.setattr(attention, "decode_rivals", lambda: {"rival": print})
    figures = attention.decode("bf16", MACHINE)
    read = 2 * 2 * 128 * 64 * 2  # keys and values of two sequences of 128 tokens, 64 wide, two bytes each
    assert figures["of_copy"] == pytest.approx(read / figures["us"] / 1e3 / 100)
    assert attention.decode("int8", MACHINE)["of_bf16_time"] == pytest.approx(2 / 3)
    monkeypatch.setattr(attention, "PROMPT", 64)
    assert attention.prefill("bf16", MACHINE)["rival"] == "math"


@pytest.mark.parametrize(
    "run",
    [
        partial(gemm.packed, gemm.packed_w4, 5, 128, 256),
        partial(gemm.fp8, 5, 128, 256),
        partial(gemm.int8, 5, 128, 256),
    ],
)
def test_gemms_are_measured(run: Callable[[Machine], Figures]) -> None:
    figures = run(MACHINE)
    assert figures["speedup"] == figures["rival_us"] / figures["us"]


def test_row_kernels_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HIDDEN": 128, "GATED": 256, "VOCAB": 300, "HEADS": 4, "KV_HEADS": 2, "HEAD": 16}.items():
        monkeypatch.setattr(rows, name, value)
    for run in (rows.time_rms_norm, rows.time_silu_mul, rows.time_rope, rows.time_gather):
        assert run(3, MACHINE)["us"] > 0
    assert rows.time_sampler(1, "top-k and top-p", MACHINE)["us"] > 0


def test_tuning_names_the_fastest_form_and_leaves_out_what_is_wrong() -> None:
    table = Few(16, 64, 128, 64, 2, 4, 3)
    times = {table: 3.0, Few(16, 64, 128, 64, 2, 8, 3): 2.0}

    def run(candidate: Few) -> float:
        if candidate.stages == 4:
            raise ValueError("computes something else than the table's row")
        return times.get(candidate, 9.0)

    figures = tuning.tune(list(tuning.neighbours(table)), run, 16, MACHINE)
    assert figures["gain"] == 1.5
    assert figures["paste"].startswith(
        "Row(16, Few(block_m=16, block_n=64, block_k=128, programs=64, max_split=2, warps=8"
    )
    assert "stages=4" in figures["left_out_forms"]
    alike = tuning.Alike()
    alike.check("y", torch.ones(4))
    alike.check("y", torch.full((4,), 1.01))
    with pytest.raises(ValueError, match="something else"):
        alike.check("y", torch.full((4,), 1.03))


def test_tuning_launches_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SHAPES", ((128, 256),))
    # Times grow with every launch here, so the table's own row, which goes first, must win.
    assert tuning.gemm("w8a8", 5, MACHINE)["gain"] == 1.0
    monkeypatch.setattr(tuning, "EVEN", [(1, 128)] * 2)
    monkeypatch.setattr(tuning, "LLAMA", SMALL)
    figures = tuning.attention("decode", "bf16", MACHINE)
    assert figures["left_out_forms"] == "none"


def test_a_model_is_stepped_two_steps_ahead_and_grows_by_nothing() -> None:
    model = LoadedGpuModel(RehearsalDevice(), TINY_MODEL, "int4", Sizes(2, 4, 64, 1 << 16))
    assert model.cold_start["graphs"] == 2
    seconds, _ = model.decode(2, 3, 1, 2)
    assert seconds > 0
    assert model.prefill_seconds(4) > 0
    assert model.growth() == {"allocations": 0, "compilations": 0}


def test_growth_after_the_start_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedGpuModel(RehearsalDevice(), TINY_MODEL, "none", Sizes(1, 4, 64, 1 << 16))
    monkeypatch.setattr(model.model.device, "growth", lambda: Growth(1, 0))
    with pytest.raises(Wrong, match="1 allocations"):
        model.growth()


def test_the_models_have_the_sizes_of_their_names() -> None:
    assert LLAMA_8B.parameters == 8_030_261_248
    assert QWEN_600M.parameters == 596_049_920
