"""Servers in memory, which say exactly the bytes that a test wants."""

from collections.abc import Awaitable, Callable

import trio
from trio.testing import memory_stream_pair

Serve = Callable[[int, trio.abc.Stream], Awaitable[None]]


class Servers:
    """Each connection is served by `serve(number, stream)`."""

    def __init__(self, nursery: trio.Nursery, serve: Serve) -> None:
        self._nursery = nursery
        self._serve = serve
        self.streams: list[trio.abc.Stream] = []

    async def connect(self, slow: bool) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, len(self.streams), theirs)
        self.streams.append(theirs)
        return ours


async def read_head(stream: trio.abc.Stream) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        if not (data := await stream.receive_some()):
            return b""
        found += data
    return found
