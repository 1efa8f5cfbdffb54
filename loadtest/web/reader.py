"""The client's loop: reads many sockets as fast as one core can and keeps every byte for later.

Nothing is parsed while the clock runs: a read costs one system call and a few bytecodes, so that the client is not what
is measured. Streams are checked afterwards, from the bytes kept (check_sse.py, check_websocket.py). The client's own
CPU time is part of every result, and says so where it was the limit after all.
"""

import gc
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from ..process import CpuTime

_READ: Final = 1 << 18
_GROWTH: Final = 1 << 20


class Pipe:
    """A connection and all that came on it. `end`: bytes that only a stream's last write contains."""

    def __init__(self, port: int, request: bytes, end: bytes, expected_bytes: int = _READ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.request = request
        self.end = end
        self.data = bytearray(expected_bytes + _READ)
        self.view = memoryview(self.data)
        self.size = 0
        self.before = 0  # bytes that came before the request was sent: a handshake's answer
        self.reads: list[tuple[float, int]] = []  # when, and the size then; only where asked for

    def received(self) -> bytes:
        return bytes(self.view[: self.size])

    def grow(self) -> None:
        larger = bytearray(len(self.data) + _GROWTH)
        larger[: len(self.data)] = self.data
        self.data, self.view = larger, memoryview(larger)

    def close(self) -> None:
        self.socket.close()


class Moment(NamedTuple):
    """One look at the clocks and at how far each stream is."""

    time: float
    client_cpu: float
    cpu: CpuTime
    sizes: tuple[int, ...]


def moment(look: Callable[[], CpuTime], pipes: Sequence[Pipe]) -> Moment:
    return Moment(time.perf_counter(), time.process_time(), look(), tuple(pipe.size for pipe in pipes))


class Reading(NamedTuple):
    """What was read, and the two moments between which everything ran at its steady rate."""

    pipes: Sequence[Pipe]
    first: Moment
    last: Moment
    reads: int

    def effort(self) -> "Effort":
        return effort_between(self.first, self.last)


class Effort(Struct, frozen=True, kw_only=True):
    """Who worked how much of a stretch of time. Shares are of one core."""

    seconds: float
    server_share: float
    server_waited_share: float  # ready, but another process had its core: above a few per cent, not a quiet machine
    client_share: float
    worker_share: float
    limit: str  # "server", or who else was at the end of its core


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
    """Who was at the end of its core. Client and worker share one."""
    if server + waited > 0.9:
        return "server" if waited < 0.05 else "server, beside other processes on its core"
    if client + worker > 0.9:
        return "client" if client > worker else "scripted worker"
    return "none: waiting for each other or for the clock"


def read_streams(
    pipes: Sequence[Pipe],
    look: Callable[[], CpuTime],
    *,
    settle_seconds: float = 0.3,
    keep_times: bool = False,
    deadline_seconds: float = 60.0,
) -> Reading:
    """Send every request, read to the last end. `look` gives the server's CPU time so far.

    The steady part begins `settle_seconds` after the last stream has begun, and ends when the first one ends.
    """

    poll = select.epoll()
    by_descriptor: dict[int, Pipe] = {}
    for pipe in pipes:
        pipe.socket.sendall(pipe.request)
        pipe.socket.setblocking(False)
        poll.register(pipe.socket, select.EPOLLIN)
        by_descriptor[pipe.socket.fileno()] = pipe
    clock = time.perf_counter
    silent, reads, gives_up = len(pipes), 0, clock() + deadline_seconds
    settled = float("inf")
    first: Moment | None = None
    last: Moment | None = None
    gc.collect()
    gc.disable()
    try:
        while by_descriptor:
            ready = poll.poll(1.0)
            now = clock()
            if first is None and now >= settled:
                first = moment(look, pipes)
            if now > gives_up:
                raise RuntimeError(
                    f"{len(by_descriptor)} of {len(pipes)} streams did not end in {deadline_seconds:g} s"
                )
            for descriptor, _ in ready:
                pipe = by_descriptor[descriptor]
                size = pipe.size
                if len(pipe.view) - size < _READ:
                    pipe.grow()
                got = pipe.socket.recv_into(pipe.view[size:], _READ)
                reads += 1
                if size == pipe.before:
                    silent -= 1
                    if not silent:
                        settled = clock() + settle_seconds
                pipe.size = size + got
                if keep_times:
                    pipe.reads.append((clock(), pipe.size))
                if not got or pipe.data.find(pipe.end, max(0, size - len(pipe.end)), pipe.size) >= 0:
                    if first is not None and last is None:
                        last = moment(look, pipes)
                    poll.unregister(descriptor)
                    del by_descriptor[descriptor]
    finally:
        gc.enable()
        poll.close()
    if first is None or last is None:
        raise RuntimeError("the streams ended before all had begun: they were too short to measure")
    return Reading(pipes, first, last, reads)
