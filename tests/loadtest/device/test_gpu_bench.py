"""What the GPU suite measures, run once in the interpreter on small shapes: it runs, its figures add up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
from torch.nn.attention import SDPBackend

from triolet.kernels.gemm.gpu_table import LinearFormat
from triolet.loadtest.device import gpu_attention_times as attention
from triolet.loadtest.device import gpu_experts as experts
from triolet.loadtest.device import gpu_gemm_times as gemm
from triolet.loadtest.device import gpu_limits as limits
from triolet.loadtest.device import gpu_model_times as model_times
from triolet.loadtest.device import gpu_models as models
from triolet.loadtest.device import gpu_rows_times as rows
from triolet.loadtest.device import gpu_sampling as sampling
from triolet.loadtest.device import gpu_timing as timing
from triolet.loadtest.device.gpu_case import PARTS, GpuMachine, Skip, Wrong, cases_of
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_ragged import Form
from triolet.loadtest.device.random_adapter import random_adapter
from triolet.loadtest.device.random_model import LLAMA_8B, QWEN_600M, TINY
from triolet.models.gpu.buckets import PassShape
from triolet.models.gpu.device import Growth
from triolet.models.gpu.memory import LAUNCH_BYTES, LIBRARY_BYTES
from triolet.models.gpu.rehearsal import RehearsalDevice

MACHINE = GpuMachine("cpu", 90, "a machine", {}, {"copy_gb_s": 100.0, "bf16_tflops": 1.0}, multiprocessors=2)
SMALL = Form(heads=2, kv_heads=1, size=64)


@pytest.fixture(autouse=True)
def _run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of timing, of which no GPU means none: the n-th work takes n microseconds."""
    done: list[int] = []

    def once(work: Callable[[], object]) -> float:
        work()
        done.append(1)
        return float(len(done))

    for module in (attention, experts, gemm, limits, timing):
        monkeypatch.setattr(module, "microseconds", once)


def serve(monkeypatch: pytest.MonkeyPatch, model: LoadedGpuModel, graph_seconds: Callable[..., float]) -> None:
    """Cases of models get this one, whatever they ask for, and so long a graph."""

    def loaded(kind: models.Kind, machine: GpuMachine) -> LoadedGpuModel:
        return model

    monkeypatch.setattr(model_times, "loaded", loaded)
    monkeypatch.setattr(model_times, "graph_seconds", graph_seconds)


def test_every_case_has_a_name_of_its_own() -> None:
    for part in PARTS:
        names = [case.name for case in cases_of(part, False)]
        assert names
        assert len(set(names)) == len(names)


def test_attention_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "EVEN", [(1, 128)] * 2)
    monkeypatch.setattr(attention, "LLAMA", SMALL)
    monkeypatch.setattr(attention, "BACKENDS", {"math": SDPBackend.MATH})
    monkeypatch.setattr(attention, "decode_rivals", lambda: {"rival": print})
    figures = attention.time_decode("bf16", MACHINE)
    read = 2 * 2 * 128 * 64 * 2  # keys and values of two sequences of 128 tokens, 64 wide, two bytes each
    assert figures["of_copy"] == pytest.approx(read / figures["us"] / 1e3 / 100)
    assert attention.time_decode("int8", MACHINE)["of_bf16_time"] == pytest.approx(3 / 4)
    monkeypatch.setattr(attention, "PROMPT", 64)
    figures = attention.time_prefill("bf16", MACHINE)
    assert figures["rival"] == "math"
    assert figures["math without groups_us"] > figures["math_us"]  # it was timed later


@pytest.mark.parametrize("kind", ["w4a16", "fp8", "w8a8"])
def test_gemms_are_measured(kind: LinearFormat) -> None:
    figures = gemm.time_gemm(kind, 16 if kind == "fp8" else 5, 128, 256, MACHINE)
    assert figures["speedup"] == figures["rival_us"] / figures["us"]


def test_a_rival_that_does_not_run_costs_nothing_but_its_figure() -> None:
    def refuse() -> None:
        raise LookupError("no such backend\nand much more")

    figures = timing.beside(2.0, {"fast": list, "slow": dict, "gone": refuse})
    assert figures == {
        "fast_us": 1.0, "slow_us": 2.0, "rival": "fast", "rival_us": 1.0, "speedup": 0.5,
        "refused": "{'gone': 'LookupError: no such backend'}",
    }  # fmt: skip
    assert timing.beside(2.0, {"gone": refuse}) == {"refused": "{'gone': 'LookupError: no such backend'}"}


def test_a_lost_device_is_no_fault_of_a_rival() -> None:
    def lose() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        timing.beside(2.0, {"gone": lose})


def test_rivals_that_are_not_installed_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemlite", None)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(Skip, match="gemlite is not installed"):
        gemm.beside_gemlite(1, 64, 128, MACHINE)
    with pytest.raises(Skip, match="liger"):
        rows.beside_liger("rms_norm", 3, MACHINE)


def test_row_kernels_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HIDDEN": 128, "GATED": 256, "VOCAB": 300, "HEADS": 4, "KV_HEADS": 2, "HEAD": 16}.items():
        monkeypatch.setattr(rows, name, value)
    for work in rows.WORKS.values():
        assert timing.time_moved(partial(work, 3), MACHINE)["us"] > 0
    monkeypatch.setattr(sampling, "VOCAB", 300)
    assert timing.time_moved(partial(sampling.sampler_work, 1, "top-k and top-p"), MACHINE)["us"] > 0


def test_experts_are_measured_by_the_weights_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXPERTS": 4, "CHOSEN": 2, "WIDTH": 32, "HIDDEN": 128}.items():
        monkeypatch.setattr(experts, name, value)
    figures = experts.time_product("bf16", 1, MACHINE)
    assert figures["weights_of_copy"] == pytest.approx(2 * 2 * 64 * 128 / figures["us"] / 1e3 / 100)
    assert experts.time_product("fp8", 3, MACHINE)["us"] > figures["us"]


def test_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COPIED", 1 << 16)
    monkeypatch.setattr(limits, "GEMMS", ((32, 48, 64), (16, 16, 16)))
    assert limits.copy_bandwidth(MACHINE)["copy_gb_s"] == pytest.approx(2 * (1 << 16) / 1 / 1e3)  # one microsecond
    assert limits.small_graph(MACHINE) == {"graph_us": 2.0}
    figures = limits.bf16_gemm(MACHINE)  # the first shape takes 3 us, the second, a smaller one, 4
    assert figures == {"bf16_tflops": pytest.approx(2e-6 * 32 * 48 * 64 / 3), "bf16_shape": "32x48x64"}
    assert limits.fp8_gemm(MACHINE)["fp8_tflops"] > 0


def test_a_model_is_stepped_two_steps_ahead_and_grows_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedGpuModel(RehearsalDevice(), TINY, "int4", Sizes(2, 4, 64, 1 << 16))
    model.model.replay(PassShape(2, 2, 2, True))  # what is timed on a GPU
    assert model.cold_start["graphs"] == model.model.buckets.graph_count
    seconds, _ = model.decode(2, 3, 1, 2)
    assert seconds > 0
    assert model.prefill_seconds(4) > 0
    assert models.check_growth(model, ((1, 4),)) == {"allocations": 0, "compilations": 0}
    kind = models.Kind("qwen-0.6b", "int4")
    serve(monkeypatch, model, lambda *_: 1e-9)
    monkeypatch.setattr(model_times, "SIZES", Sizes(2, 4, 64, 1 << 16))
    figures = model_times.time_decode(kind, 2, 3, 2, MACHINE)
    assert figures["tokens_s"] == pytest.approx(2e6 / figures["step_us"])
    assert 0.99 < figures["idle"] <= 1
    assert model_times.time_prefill(kind, MACHINE)["of_bf16_gemm"] > 0
    assert model_times.time_cold_start(kind, MACHINE)["graphs"] > 0


def test_launches_are_kept_apart_for_the_model_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made as others are, between its device and its kernels."""
    made = list[str]()

    def note(what: str) -> Callable[..., None]:
        def noted(*given: object, **_: object) -> None:
            made.append(f"{what} {given[0]}" if isinstance(given[0], bool) else what)

        return noted

    for name, what in (("device_of", "device"), ("overlap_launches", "overlap"), ("LoadedGpuModel", "model")):
        monkeypatch.setattr(model_times, name, note(what))
    for kind in (models.Kind("tiny"), models.Kind("tiny", overlaps=False)):
        monkeypatch.setattr(model_times, "_loaded", {})
        model_times.loaded(kind, MACHINE)
    assert made == [
        "device",
        "overlap True",
        "model",
        "overlap True",
        "device",
        "overlap False",
        "model",
        "overlap True",
    ]
    assert models.Kind("tiny", overlaps=False).title == "tiny launched apart"


class ShrinkingDevice(RehearsalDevice):
    """Has a gigabyte less of free memory whenever it is asked."""

    asked = 0

    def free_memory(self) -> tuple[int, int]:
        self.asked += 1
        free, total = super().free_memory()
        return free - self.asked * 10**9, total


def test_a_cold_start_tells_the_memory_of_graphs_beside_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedGpuModel(ShrinkingDevice(16 * 10**9), TINY, "none", Sizes(1, 2, 64, 1 << 16))
    serve(monkeypatch, model, lambda: 0.0)
    figures = model_times.time_cold_start(models.Kind("qwen-0.6b"), MACHINE)
    assert (figures["kernels_gb"], figures["graphs_gb"]) == (1.0, 2.0)  # the model asks too
    graphs = round(figures["planned_kernels_and_graphs_gb"] * 1e9) - LIBRARY_BYTES
    assert graphs > 0
    assert graphs % LAUNCH_BYTES == 0


def test_adapters_are_timed_against_the_same_model_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedGpuModel(RehearsalDevice(), TINY, "none", Sizes(1, 2, 64, 1 << 16), adapters=1)
    model.add_adapters([random_adapter(TINY, 1)])
    for name, value in (("PROMPT", 1), ("WARM_UP", 1), ("STEPS", 1)):
        monkeypatch.setattr(model_times, name, value)

    def graph_seconds(*_: object, adapted: bool) -> float:
        return 2e-9 if adapted else 1e-9

    serve(monkeypatch, model, graph_seconds)
    figures = model_times.time_adapters(models.Kind("qwen-0.6b", adapters=1), MACHINE)
    assert (figures["base_graph_us"], figures["graph_us"]) == pytest.approx((1e-3, 2e-3))
    assert 0 < figures["of_base"] == pytest.approx(figures["base_step_us"] / figures["step_us"])


@pytest.mark.parametrize(("cache", "of_a_token"), [("bfloat16", 131072), ("fp8", 67584), ("int8", 67584)])
def test_the_roofline_counts_what_a_step_reads(cache: str, of_a_token: int) -> None:
    """Of the 8B model: 32 layers of keys and values, 8 heads of 128; 8-bit ones with 4 bytes of scale each."""
    weights = model_times.bytes_of_a_step(LLAMA_8B, "none", cache, 0)
    assert weights == pytest.approx(2 * (LLAMA_8B.parameters - 128256 * 4096), rel=1e-3)
    assert model_times.bytes_of_a_step(LLAMA_8B, "none", cache, 10) - weights == pytest.approx(10 * of_a_token)


def test_growth_after_the_start_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedGpuModel(RehearsalDevice(), TINY, "none", Sizes(1, 4, 64, 1 << 16))
    monkeypatch.setattr(model.model.device, "growth", lambda: Growth(1, 0))
    with pytest.raises(Wrong, match="1 allocations"):
        model.growth()


def test_fp8_weights_are_skipped_where_a_device_has_no_float8() -> None:
    old = GpuMachine("cpu", 86, "an older machine", {})
    for kind in models.KINDS:
        if kind.quantize == "fp8":
            with pytest.raises(Skip, match="no float8"):
                model_times.time_cold_start(kind, old)
            with pytest.raises(Skip, match="no float8"):
                models.check_layer(kind, old)
        else:
            old.need(kind.quantize)  # 8-bit caches it can read
    with pytest.raises(Skip, match="no float8"):
        models.check_small("fp8", "bfloat16", old)


def test_the_models_have_the_sizes_of_their_names() -> None:
    assert LLAMA_8B.parameters == 8_030_261_248
    assert QWEN_600M.parameters == 596_049_920
