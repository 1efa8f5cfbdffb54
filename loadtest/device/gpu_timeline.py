"""The launches of a decode step: of each kernel how many, how long they run, and how long the device idles before them.

On a GPU torch's profiler watches replays of the step's graphs. The rehearsal device lists what its graphs launch, which
has no times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from triolet.loadtest.device.gpu_case import Figures
from triolet.models.gpu.device import Device
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.rehearsal_launches import Launch

REPLAYS = 7  # of the same step: the first may be slower, a median is not


class Ran(NamedTuple):
    """One launch on the device."""

    kernel: str
    times: tuple[float, float] | None = None  # begin and end, microseconds


class ListingRehearsal(RehearsalDevice):
    """Keeps the names of what was launched."""

    def __init__(self, capability: int = 90) -> None:
        super().__init__(capability=capability)
        self.launched: list[str] = []

    def _enqueue(self, launch: Launch) -> None:
        recorded: Any = launch  # Any: a `partial` of the kernel, or torch's operation, and what it works on
        if isinstance(recorded, partial):
            kernel = recorded.args[0]
            self.launched.append(getattr(kernel, "__name__", str(kernel)))
        super()._enqueue(launch)


def launches_of(device: Device, replay: Callable[[], None]) -> list[Ran]:
    """In their order, of all replays."""
    if isinstance(device, ListingRehearsal):
        device.synchronize()
        device.launched.clear()
        for _ in range(REPLAYS):
            replay()
        device.synchronize()
        return [Ran(name) for name in device.launched]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            replay()
        device.synchronize()
    events: Any = profiler.events()  # Any: torch has no types for them
    spans = [
        Ran(str(event.name), (float(event.time_range.start), float(event.time_range.end)))
        for event in events
        if event.device_type.name == "CUDA"
    ]
    return sorted(spans, key=lambda ran: ran.times or ())


def step_figures(ran: list[Ran], layers: int) -> Figures:
    """Of a step: medians over its replays. Raises ValueError where these are not alike: launches were lost."""
    size = len(ran) // REPLAYS
    names = [one.kernel for one in ran[:size]]
    if not names or [one.kernel for one in ran] != names * REPLAYS:
        raise ValueError(f"{len(ran)} launches were seen in {REPLAYS} replays of one step, which are not alike")
    count = {name: names.count(name) for name in dict.fromkeys(names)}
    # A kernel of a layer is launched for every layer, others a few times more.
    figures: Figures = {"launches": size, "launches_per_layer": sum(number // layers for number in count.values())}
    rows: dict[str, Figures] = {name: {"kernel": name, "count": number} for name, number in count.items()}
    if spans := [one.times for one in ran if one.times is not None]:
        # Of each launch of the step, over its replays.
        medians = [tuple(map(median, zip(*alike, strict=True))) for alike in zip(*_steps(spans, size), strict=True)]
        for name, (time, gap, _) in zip(names, medians, strict=True):
            rows[name]["us"] = rows[name].get("us", 0.0) + time
            rows[name]["gap_us"] = rows[name].get("gap_us", 0.0) + gap
        sums = map(sum, zip(*medians, strict=True))
        figures |= dict(zip(("kernels_us", "gaps_us", "overlap_us"), sums, strict=True))
    ordered = sorted(rows.values(), key=lambda row: (row.get("us", 0.0), row["count"]), reverse=True)
    return figures | {"timeline": ordered}


def _steps(spans: list[tuple[float, float]], size: int) -> list[list[tuple[float, float, float]]]:
    """Of each replay, of each launch: how long it runs, how long nothing ran before it, and how long not alone."""
    found: list[tuple[float, float, float]] = []
    ended = spans[0][0]
    for begin, end in spans:
        found.append((end - begin, max(0.0, begin - ended), max(0.0, min(end, ended) - begin)))
        ended = max(ended, end)
    return [found[first : first + size] for first in range(0, len(found), size)]
