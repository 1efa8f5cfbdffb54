"""Forms of a launch beside the one in use: compiled first, timed in turns, and compared in what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch

from triolet.kernels.embedding import gpu as embedding_gpu
from triolet.kernels.gemm.gpu_table import Few
from triolet.kernels.gpu.launches import form_of
from triolet.kernels.paged_attention.gpu_table import PrefillLaunch
from triolet.loadtest.device import gpu_rows_times as rows
from triolet.loadtest.device import gpu_tuned as tuned
from triolet.loadtest.device import gpu_tuning as tuning
from triolet.loadtest.device.gpu_case import GpuMachine
from triolet.loadtest.device.gpu_timing import Works

MACHINE = GpuMachine("cpu", 90, "a machine", {}, multiprocessors=2)
TABLE = Few(16, 64, 128, 64, 2, 4, 3)


def few(times: Mapping[str, list[int]], _machine: GpuMachine) -> tuning.Tuned:
    """Neighbours of TABLE. A form's works take these times, one after the other, others 9; four stages are wrong."""

    def works(candidate: Few) -> Works:
        name = next(name for name, form in forms.items() if form == candidate)

        def work() -> torch.Tensor:
            took.append(times[name].pop(0) if times.get(name) else 9)
            return torch.full((4,), 1.03 if candidate.stages == 4 else 1.0)

        return {"y": work}

    forms = tuning.neighbours(TABLE)
    return tuning.Tuned(forms, works, 16)


took: list[float] = []


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of these tests: works of `few` say how long they take, others take one microsecond more each time."""
    took.clear()

    def clock(work: Callable[[], object]) -> float:
        before = len(took)
        work()
        if len(took) == before:
            took.append(1.0 + before)
        return took[-1]

    monkeypatch.setattr(tuning, "on_host", clock)


def test_the_fastest_form_is_compared_in_turns_and_what_is_wrong_left_out() -> None:
    # Of each time one is for comparing what is computed, and one is measured: 3, then in turns 4, 6, 5; and 2, 3, 1, 2.
    times = {tuning.IN_USE: [0, 3, 0, 4, 6, 5], "warps=8": [0, 2, 0, 3, 1, 2], "stages=4": [0, 1]}
    figures = tuning.tune(partial(few, times), MACHINE)
    assert (figures["in_use_us"], figures["us"], figures["gain"], figures["winner"]) == (5, 2, 2.5, "warps=8")
    assert figures["paste"].startswith(
        "LaunchRow(16, Few(block_m=16, block_n=64, block_k=128, programs=64, max_split=2, warps=8"
    )
    assert figures["all_forms"].startswith("2.0 us warps=8; 3.0 us in use; 9.0 us ")
    assert figures["left_out_forms"] == "stages=4: ValueError: computes something else than the launch in use"


def test_a_variant_is_told_as_a_gain() -> None:
    changes = {"eight warps": {"warps": 8}, "as it is": {"stages": 3}, "wrong": {"stages": 4}}
    times = {tuning.IN_USE: [0, 3, 6, 6], "warps=8": [0, 4, 4, 1]}
    figures = tuning.compare(partial(tuning.changed, partial(few, times), changes), MACHINE)
    assert figures.pop("refused").startswith("{'wrong': 'ValueError: computes something else")
    assert figures == {"us": 6, "eight warps_us": 4, "eight warps_gain": 1.5}
    assert took == [0, 3, 0, 4, 9, 6, 4, 6, 1]  # in turns, what is refused once only


def test_neighbours_change_one_field_and_read_by_pointers_too() -> None:
    found = tuning.neighbours(PrefillLaunch(128, 8, 1, descriptors=True))
    assert list(found) == ["in use", "rows=64", "warps=4", "stages=2", "descriptors=False"]  # never 0 stages
    assert found["descriptors=False"] == PrefillLaunch(128, 8, 1, descriptors=False)


def test_results_are_alike_up_to_roundings() -> None:
    alike = tuning.Alike()
    alike.check("y", torch.ones(4))
    alike.check("y", torch.full((4,), 1.01))
    alike.check("y", None)  # not compared
    with pytest.raises(ValueError, match="something else"):
        alike.check("y", torch.full((4,), 1.03))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuning.Make]:
    monkeypatch.setattr(rows, "HIDDEN", 128)
    monkeypatch.setattr(rows, "VOCAB", 300)
    attention = partial(tuned.attention, "decode", tuned.TINY, tuned.TINY_CHUNKS)
    return {
        "gather": partial(tuned.table_row, embedding_gpu, "TABLE", 128, partial(rows.gather_work, 3)),
        "w8a8": partial(tuned.products, "w8a8", 5, ((128, 256),)),
        "bf16": partial(tuned.products, "bf16", 5, ((128, 256),)),
        "decode": attention,
    }


@pytest.mark.parametrize(
    ("name", "named"), [("gather", "tile="), ("w8a8", "stages="), ("bf16", "ours"), ("decode", "resident=")]
)
def test_every_form_is_launched(name: str, named: str, small: dict[str, tuning.Make]) -> None:
    figures = tuning.tune(small[name], MACHINE)
    # Times grow with every launch here, so the one in use, which goes first, must win.
    assert (figures["winner"], figures["left_out_forms"]) == ("in use", "none")
    assert figures["all_forms"].count(named) > 1
    assert figures["all_forms"].count(";") == len(small[name](MACHINE).forms) - 1
    assert "programs=0" in figures["paste"] or name != "decode"  # as in the table: the device says how many


@pytest.mark.parametrize("name", ["gather", "w8a8", "bf16", "decode"])
def test_what_is_timed_was_compiled_before(name: str, small: dict[str, tuning.Make]) -> None:
    """Every kernel that timing launches, in the form in which it does, and nothing is launched by compiling."""
    made = small[name](MACHINE)
    with tuning.compiling() as compiled:
        for launch in made.forms.values():
            for work in made.works(launch).values():
                work()
    launched: list[object] = []
    launcher = type(embedding_gpu.gather_rows_kernel)
    run = launcher.run  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]  # Triton's own

    def note(kernel: object, *args: object, **given: object) -> None:
        launched.append(form_of(kernel, args, {key: given[key] for key in given if key not in ("grid", "warmup")}))
        run(kernel, *args, **given)

    with tuning.replaced(launcher, "run", note):
        tuning.in_turns(made, list(made.forms), 1, MACHINE)
    assert launched
    assert {*launched} == compiled


def test_compiling_launches_nothing() -> None:
    ids, table, out = torch.tensor([1, 0]).int(), torch.ones(2, 64).bfloat16(), torch.zeros(2, 64).bfloat16()
    with tuning.compiling() as compiled:
        embedding_gpu.gather_rows(ids, table, out, capability=90)
    assert [form.name.rpartition(".")[2] for form in compiled] == ["gather_rows_kernel"]
    assert not out.any()
    embedding_gpu.gather_rows(ids, table, out, capability=90)
    assert out.all()


def test_compiling_tells_what_did_not_compile(small: dict[str, tuning.Make]) -> None:
    def broken(machine: GpuMachine) -> tuning.Tuned:
        made = small["gather"](machine)
        return tuning.Tuned(made.forms | {"broken": None}, made.works)

    assert tuning.compile_forms(small["gather"], MACHINE) == {"forms": 5, "kernels": 5, "refused": 0}
    assert tuning.compile_forms(broken, MACHINE) == {"forms": 6, "kernels": 5, "refused": 1}


def test_all_that_is_timed_is_compiled() -> None:
    for dry in (False, True):
        assert {case.name for case in tuned.compilations(dry)} == {case.name for case in tuned.tunings(dry)}
