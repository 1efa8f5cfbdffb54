"""Typed messages over a byte stream between front and worker, in the frames of frame.py.

A frame's length is capped: whoever reads a longer one has lost the border, and stops instead of allocating. One task
sends and one receives. The peer's end, however it comes, is `trio.EndOfChannel` to the reader and
`trio.BrokenResourceError` to the writer.
"""

import os
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec
import trio

from ..protocol.message import Message
from .frame import HEADER, MAX_FRAME, FrameWriter, LinkError

__all__ = ["HEADER", "MAX_FRAME", "Link", "LinkError"]

Received = TypeVar("Received", bound=Message)

_READ: Final = 1 << 16


class Link(Generic[Received]):
    """One end of the connection; `decoder` knows the union of the messages that may arrive."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._stream = stream
        self._decode = decoder.decode
        self._outgoing = FrameWriter()
        self._incoming = bytearray()
        self._fileno = stream.socket.fileno if isinstance(stream, trio.SocketStream) else None

    async def send(self, message: Message) -> None:
        """Send one message and wait until the socket took it; without a checkpoint when it takes it at once."""
        frame = self._outgoing.write(message)
        if self._fileno is not None:
            try:
                sent = os.write(self._fileno(), frame)
            except OSError:  # its buffer is full, or the peer is gone: send_all finds out which
                sent = 0
            if sent == len(frame):
                return
            frame = frame[sent:]
        await self._stream.send_all(frame)

    async def receive(self) -> Received:
        """The next message."""
        size = int.from_bytes(await self._take(HEADER), "big")
        if size > MAX_FRAME:
            raise LinkError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
        frame = await self._take(size)
        try:
            return self._decode(frame)
        except msgspec.DecodeError as error:
            raise LinkError(f"a frame of {size} bytes is no message: {error}") from error

    async def _take(self, size: int) -> bytes:
        """The next `size` bytes; checkpoints only when they have not come yet."""
        while len(self._incoming) < size:
            some = await self._read()
            if not some:
                raise trio.EndOfChannel
            self._incoming += some
        taken = bytes(memoryview(self._incoming)[:size])
        del self._incoming[:size]
        return taken

    async def _read(self) -> bytes:
        """Some bytes; none at the end. A socket is read when it has something, not asked before whether it has."""
        try:
            if self._fileno is None:
                return bytes(await self._stream.receive_some(_READ))
            while True:
                await trio.lowlevel.wait_readable(self._fileno())
                with suppress(BlockingIOError):  # a wake-up for nothing
                    return os.read(self._fileno(), _READ)
        except (trio.BrokenResourceError, ConnectionError):
            return b""

    async def aclose(self) -> None:
        await self._stream.aclose()
