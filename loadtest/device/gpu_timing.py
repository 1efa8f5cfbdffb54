"""How long work takes on the GPU: the median over replays of a captured graph, between events, with L2 flushed.

A graph leaves Python out, as serving does. The flush before each replay keeps the device busy while the replay is
enqueued, so no launch from the host is inside the measured time; that of the graph itself is (about 2 us).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

FLUSH_BYTES = 256 << 20  # five times the 50 MB of L2 of an H200
WARM_UPS, LEAST, MOST, SECONDS = 3, 10, 100, 0.12
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
    with torch.cuda.graph(graph):
        work()
    first = _replay(graph, 3)
    return statistics.median(_replay(graph, max(LEAST, min(MOST, int(SECONDS / (min(first) * 1e-6))))))


def timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types for it


def _replay(graph: torch.cuda.CUDAGraph, times: int) -> list[float]:
    if not _flush:
        _flush.append(torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"))
    pairs = [(timer(), timer()) for _ in range(times)]
    for begin, end in pairs:
        _flush[0].zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in pairs]


def best(works: dict[str, Callable[[], object]]) -> tuple[str, float, dict[str, str]]:
    """(name, microseconds) of the fastest, and why others did not run. ("", inf) where none did."""
    found, name, refused = float("inf"), "", dict[str, str]()
    for candidate, work in works.items():
        try:
            time = microseconds(work)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
            if "CUDA error" in str(error):
                raise
            refused[candidate] = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            continue
        if time < found:
            name, found = candidate, time
    return name, found, refused
