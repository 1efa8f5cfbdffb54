"""Where a step's time goes: kernels, the gaps between them, and a trace that lost something."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from triolet.loadtest.device.gpu_timeline import REPLAYS, ListingRehearsal, Ran, launches_of, step_figures
from triolet.models.gpu.device import Device

# The second gemm begins half a µs early, and something else runs beside it.
STEP = (("gemm", 2.0, 10.0), ("norm", 12.5, 13.5), ("gemm", 13.0, 20.0), ("fill", 14.0, 15.0))
NEXT = 25.0  # when the step is replayed


def replayed(first: float = 0.0) -> list[Ran]:
    """`first`: by which the first replay's launches last longer."""
    return [
        Ran(kernel, (NEXT * replay + begin, NEXT * replay + end + (0 if replay else first)))
        for replay in range(REPLAYS)
        for kernel, begin, end in STEP
    ]


def test_a_timeline_adds_up_kernels_and_the_gaps_before_them() -> None:
    figures = step_figures(replayed(first=3.0), layers=2)
    assert figures == {
        "launches": 4,
        "launches_per_layer": 1,  # two products of two layers; the others are of none
        "kernels_us": 17.0,
        "gaps_us": 9.5,  # 7 between two replays, 2.5 before the norm
        "overlap_us": 1.5,
        "timeline": [
            {"kernel": "gemm", "count": 2, "us": 15.0, "gap_us": 7.0},
            {"kernel": "norm", "count": 1, "us": 1.0, "gap_us": 2.5},
            {"kernel": "fill", "count": 1, "us": 1.0, "gap_us": 0.0},
        ],
    }
    assert figures["kernels_us"] + figures["gaps_us"] - figures["overlap_us"] == NEXT


@pytest.mark.parametrize("lost", [slice(0, 1), slice(5, 6), slice(0, len(STEP) * REPLAYS)])
def test_a_trace_that_lost_launches_is_not_told_as_a_step(lost: slice) -> None:
    ran = replayed()
    del ran[lost]
    with pytest.raises(ValueError, match=f"{len(ran)} launches were seen"):
        step_figures(ran, layers=2)


def event(name: str, kind: str, begin: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, device_type=SimpleNamespace(name=kind), time_range=SimpleNamespace(start=begin, end=end)
    )


def test_of_what_a_profiler_saw_the_device_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own is replaced, which sees no GPU here."""
    seen = [event("second", "CUDA", 3, 5), event("cudaGraphLaunch", "CPU", 0, 1), event("first", "CUDA", 1, 2)]
    asked: list[str] = []

    def profiler(**options: object) -> AbstractContextManager[SimpleNamespace]:
        assert options == {"activities": [torch.profiler.ProfilerActivity.CUDA]}
        return nullcontext(SimpleNamespace(events=lambda: seen))

    monkeypatch.setattr(torch.profiler, "profile", profiler)
    device = cast("Device", SimpleNamespace(synchronize=lambda: asked.append("waited")))
    ran = launches_of(device, lambda: asked.append("replayed"))
    assert ran == [Ran("first", (1, 2)), Ran("second", (3, 5))]
    assert asked == ["replayed"] * REPLAYS + ["waited"]


def test_the_rehearsal_lists_what_its_graphs_launch() -> None:
    device = ListingRehearsal()
    memory = device.allocate(64)
    graph = device.capture(lambda: memory.add_(1))
    device.run(lambda: memory.add_(1))  # before, so it is none of the step's
    ran = launches_of(device, graph.replay)
    assert [one.kernel for one in ran] == ["add_.Tensor"] * REPLAYS
    assert step_figures(ran, layers=1)["timeline"] == [{"kernel": "add_.Tensor", "count": 1}]
    assert int(memory[0]) == REPLAYS + 1
