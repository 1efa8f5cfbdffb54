"""CPU use of each process while streams are read, and the period in which all of them run.

The client's own CPU time is part of every result, which shows whether it was the limit.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from ..client.reader import Pipe
from ..process import CpuTime


class Moment(NamedTuple):
    """One reading of the clocks and of each stream's progress."""

    time: float
    client_cpu: float
    cpu: CpuTime
    sizes: tuple[int, ...]


def moment(look: Callable[[], CpuTime], pipes: Sequence[Pipe]) -> Moment:
    return Moment(time.perf_counter(), time.process_time(), look(), tuple(pipe.size for pipe in pipes))


class Effort(Struct, frozen=True, kw_only=True):
    """CPU use of each process over a period, as shares of one core."""

    seconds: float
    server_share: float
    server_waited_share: float  # ready, but another process had the core; above a few per cent: not a quiet machine
    client_share: float
    worker_share: float
    limit: str  # "server", or the other process that used its whole core


def effort_between(first: Moment, last: Moment) -> Effort:
    seconds = last.time - first.time
    server = (last.cpu.server - first.cpu.server) / seconds
    waited = (last.cpu.waited - first.cpu.waited) / seconds
    client = (last.client_cpu - first.client_cpu) / seconds
    worker = (last.cpu.worker - first.cpu.worker) / seconds
    return Effort(
        seconds=seconds,
        server_share=server,
        server_waited_share=waited,
        client_share=client,
        worker_share=worker,
        limit=_limit(server, waited, client, worker),
    )


def _limit(server: float, waited: float, client: float, worker: float) -> str:
    """The process that used its whole core. Client and worker share one core."""
    if server + waited > 0.9:
        return "server" if waited < 0.05 else "server, beside other processes on its core"
    if client + worker > 0.9:
        return "client" if client > worker else "scripted worker"
    return "none: waiting for each other or for the clock"


class SteadyPart:
    """Takes two snapshots: `settle_seconds` after the last stream has begun, and when the first one ends."""

    def __init__(self, pipes: Sequence[Pipe], look: Callable[[], CpuTime], settle_seconds: float) -> None:
        self._pipes = pipes
        self._look = look
        self._settle_seconds = settle_seconds
        self._settled = float("inf")
        self._first: Moment | None = None
        self._last: Moment | None = None

    def polled(self, now: float) -> None:
        if now >= self._settled and self._first is None:
            self._first = moment(self._look, self._pipes)

    def all_begun(self) -> None:
        self._settled = time.perf_counter() + self._settle_seconds

    def one_ended(self) -> None:
        if self._first is not None and self._last is None:
            self._last = moment(self._look, self._pipes)

    def ends(self) -> tuple[Moment, Moment]:
        """Both snapshots; between them everything ran at a steady rate."""
        if self._first is None or self._last is None:
            raise RuntimeError("the streams ended before all had begun: they were too short to measure")
        return self._first, self._last
