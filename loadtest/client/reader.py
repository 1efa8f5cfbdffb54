"""The raw reader: reads many sockets as fast as one core can, and keeps every byte.

Nothing is parsed while the clock runs. A read costs one system call and a few bytecodes, so that the server is measured
and not the client. The caller checks the bytes afterwards.
"""

import gc
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_READ: Final = 1 << 18
_GROWTH: Final = 1 << 20
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"  # end of a chunked body, and so of a stream over HTTP


class Pipe:
    """A connection and all bytes received on it. `end`: bytes found only in a stream's last write."""

    def __init__(
        self, port: int, request: bytes, end: bytes, expected_bytes: int = _READ, host: str = "127.0.0.1"
    ) -> None:
        self.socket = socket.create_connection((host, port))
        self.request = request
        self.end = end
        self.data = bytearray(expected_bytes + _READ)
        self.view = memoryview(self.data)
        self.size = 0
        self.before = 0  # bytes received before the request was sent: a handshake's answer
        self.reads: list[tuple[float, int]] = []  # (time, size then), only if requested

    def received(self) -> bytes:
        return bytes(self.view[: self.size])

    def grow(self) -> None:
        larger = bytearray(len(self.data) + _GROWTH)
        larger[: len(self.data)] = self.data
        self.data, self.view = larger, memoryview(larger)

    def close(self) -> None:
        self.socket.close()


class ReadingWatcher(Protocol):
    """Called as a reading progresses."""

    def polled(self, now: float) -> None:
        """Some sockets are about to be read."""
        ...

    def all_begun(self) -> None:
        """Every stream has received its first bytes."""
        ...

    def one_ended(self) -> None: ...


def read_streams(
    pipes: Sequence[Pipe],
    watcher: ReadingWatcher | None = None,
    *,
    keep_times: bool = False,
    again: Callable[[Pipe], bool] = lambda pipe: False,
    deadline_seconds: float = 60.0,
) -> int:
    """Send all requests and read until the last stream ends; returns the number of reads.

    `again` is called when a stream has ended. It may send another request on the pipe, and returns whether it did.
    """
    poll = select.epoll()
    by_descriptor: dict[int, Pipe] = {}
    clock = time.perf_counter
    silent, reads, gives_up = len(pipes), 0, clock() + deadline_seconds
    gc.collect()
    gc.disable()
    try:
        for pipe in pipes:
            pipe.socket.sendall(pipe.request)
            pipe.socket.setblocking(False)
            poll.register(pipe.socket, select.EPOLLIN)
            by_descriptor[pipe.socket.fileno()] = pipe
        while by_descriptor:
            ready = poll.poll(1.0)
            now = clock()
            if watcher is not None:
                watcher.polled(now)
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
                    if not silent and watcher is not None:
                        watcher.all_begun()
                pipe.size = size + got
                if keep_times:
                    pipe.reads.append((clock(), pipe.size))
                found = pipe.data.find(pipe.end, max(0, size - len(pipe.end)), pipe.size) >= 0
                if not got or (found and not again(pipe)):
                    if watcher is not None:
                        watcher.one_ended()
                    poll.unregister(descriptor)
                    del by_descriptor[descriptor]
    finally:
        gc.enable()
        poll.close()
    return reads
