"""How long work takes on the GPU: the median over replays of a captured graph, between events, with L2 flushed.

A graph leaves Python out, as serving does. The flush before each replay keeps the device busy while the replay is
enqueued, so no launch from the host is inside the measured time; that of the graph itself is (about 2 us). It reads:
lines that a flush had written would be written back to memory within the measured time, up to 50 MB of them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from triolet.loadtest.device.gpu_case import Figures, GpuMachine, Skip

FLUSH_BYTES = 256 << 20  # five times the 50 MB of L2 of an H200
WARM_UPS, LEAST, MOST, SECONDS = 3, 10, 100, 0.12
Works = dict[str, Callable[[], object]]
_flush: list[torch.Tensor] = []


def microseconds(work: Callable[[], object]) -> float:
    """Median time of `work`, which only enqueues on the current stream and may allocate."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # a kernel that is collected in mid-capture unloads its module, which ends the capture
    try:
        with torch.cuda.graph(graph):
            work()
    finally:
        if collecting:
            gc.enable()
    first = _replay(graph, 3)
    return statistics.median(_replay(graph, max(LEAST, min(MOST, int(SECONDS / (min(first) * 1e-6))))))


def timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types for it


def _replay(graph: torch.cuda.CUDAGraph, times: int) -> list[float]:
    if not _flush:
        _flush.append(torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda"))
        _flush.append(torch.empty((), dtype=torch.int64, device="cuda"))
    pairs = [(timer(), timer()) for _ in range(times)]
    for begin, end in pairs:
        torch.sum(_flush[0], 0, dtype=torch.int64, out=_flush[1])
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in pairs]


def timed(works: Works) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds of each that runs, and why the others do not: other people's code may raise anything."""
    times: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, work in works.items():
        try:
            times[name] = microseconds(work)
        except Exception as error:
            if "CUDA error" in str(error):
                raise  # the device is lost, or will be
            refused[name] = reason(error)
    return times, refused


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:120]


@contextmanager
def rival(name: str) -> Generator[None]:
    """Whatever goes wrong in another library is no fault of ours: the case is skipped and says why."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Skip(f"{error.name or name} is not installed") from error
    except Exception as error:
        if isinstance(error, Skip) or "CUDA error" in str(error):
            raise
        raise Skip(f"{name} does not run here: {reason(error)}") from error


def beside(time: float, works: Works) -> Figures:
    """Each rival's microseconds, and how often `time` goes into those of the fastest. No speedup where none ran."""
    times, refused = timed(works)
    figures: Figures = {f"{name}_us": value for name, value in times.items()}
    if times:
        rival = min(times, key=times.__getitem__)
        figures |= {"rival": rival, "rival_us": times[rival], "speedup": times[rival] / time}
    return figures | ({"refused": str(refused)} if refused else {})


class Moved(NamedTuple):
    """Work that moves bytes and computes little."""

    run: Callable[[], object]
    size: int  # bytes read and written


def time_moved(make: Callable[[GpuMachine], Moved], machine: GpuMachine) -> Figures:
    work = make(machine)
    time = microseconds(work.run)
    rate = work.size / time / 1e3
    return {"us": time, "gb_s": rate, "of_copy": rate / machine.limit("copy_gb_s")}
