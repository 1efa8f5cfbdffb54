"""Resident memory of the server per open stream that waits for its next token, over HTTP and WebSocket.

The worker takes seconds per step, so between steps thousands of streams are open and nothing moves. The kernel's
socket buffers are not in a process's resident memory and are not counted.
"""

import resource
import select
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec import Struct

from ..process import ServerProcess
from .check_sse import StreamError
from .held_streams import PATIENCE_SECONDS, Held, Wire, openers

STEP_SECONDS: Final = 3.0
_WARM_UP: Final = 64  # streams; allocates everything that is created only once
_SPARE_DESCRIPTORS: Final = 200


class StreamMemory(Struct, frozen=True, kw_only=True):
    wire: Wire
    streams: int
    connections: int
    bytes_per_stream: float
    open_seconds: float  # time until the last stream had its first token


def allow_descriptors(count: int) -> int:
    """Raise this process's limit of open files, inherited by children; returns how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(count, soft - _SPARE_DESCRIPTORS)


def stream_memory(server: ServerProcess, wire: Wire, streams: int) -> StreamMemory:
    """The server's worker must take STEP_SECONDS."""
    with _opened(server.port, wire, _WARM_UP):
        pass
    time.sleep(STEP_SECONDS + 1)  # until the step in flight and the abandoned streams have ended
    before, began = server.front_bytes(), time.perf_counter()
    with _opened(server.port, wire, streams) as connections:
        opened = time.perf_counter() - began
        time.sleep(STEP_SECONDS / 2)
        grown = server.front_bytes() - before
    return StreamMemory(
        wire=wire,
        streams=streams,
        connections=connections,
        bytes_per_stream=grown / streams,
        open_seconds=opened,
    )


@contextmanager
def _opened(port: int, wire: Wire, streams: int) -> Generator[int]:
    """Open the streams, wait until each has a token, close their connections."""
    with ExitStack() as stack:
        held: list[Held] = []
        for opener in openers(wire, port, streams):
            held.append(opener())
            stack.enter_context(held[-1].socket)
        _wait_for_tokens(held)
        yield len(held)


def _wait_for_tokens(held: Sequence[Held]) -> None:
    waiting = {connection.socket.fileno(): connection for connection in held}
    gives_up = time.monotonic() + PATIENCE_SECONDS
    with select.epoll() as poll:
        for descriptor in waiting:
            poll.register(descriptor, select.EPOLLIN)
        while waiting:
            for descriptor, _ in poll.poll(1.0):
                if waiting[descriptor].take():
                    poll.unregister(descriptor)
                    del waiting[descriptor]
            if time.monotonic() > gives_up:
                raise StreamError(
                    f"{len(waiting)} of {len(held)} connections had no token after {PATIENCE_SECONDS:g} s"
                )
