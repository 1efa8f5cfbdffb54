"""Typed messages over a byte stream between front and worker, in the frames of frame.py.

A frame's length is capped: whoever reads a longer one has lost the border, and stops instead of allocating. One task
receives, several may send. The peer's end, however it comes, is `trio.EndOfChannel` to the reader and
`trio.BrokenResourceError` to the writer.
"""

import os
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec
import trio

from ...protocol.message import Message
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
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._waiting_sends = trio.Lock()

    async def send(self, message: Message) -> None:
        """Send one message and wait until the socket took it; without a checkpoint when it takes it at once."""
        frame = self._outgoing.write(message)
        sent = 0
        if self._socket is not None and not self._waiting_sends.locked():
            # Its buffer is full, or the peer is gone: send_all finds out which.
            with suppress(OSError):
                sent = os.write(self._socket.fileno(), frame)
            if sent == len(frame):
                return
        rest = bytes(memoryview(frame)[sent:])  # the buffer is the next message's
        async with self._waiting_sends:  # nobody can come between: it is taken before the first turn of the loop
            await self._stream.send_all(rest)

    async def receive(self) -> Received:
        """The next message."""
        frame = await self._receive_frame()
        try:
            return self._decode(frame)
        except msgspec.DecodeError as error:
            raise LinkError(f"a frame of {len(frame)} bytes is no message: {error}") from error

    async def _receive_frame(self) -> bytes:
        """The content of the next frame; checkpoints only when it has not come yet."""
        incoming = self._incoming
        while True:
            if len(incoming) >= HEADER:
                size = int.from_bytes(incoming[:HEADER], "big")
                if size > MAX_FRAME:
                    raise LinkError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
                if len(incoming) >= HEADER + size:
                    frame = bytes(memoryview(incoming)[HEADER : HEADER + size])
                    del incoming[: HEADER + size]
                    return frame
            some = await self._read()
            if not some:
                raise trio.EndOfChannel
            incoming += some

    async def _read(self) -> bytes:
        """What has come, once there is something; nothing at the end."""
        try:
            if self._socket is None:
                return bytes(await self._stream.receive_some(_READ))
            while True:
                # Unlike a stream's own way, which tries first: that is in vain for every message but a second one.
                await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError):
                    return os.read(self._socket.fileno(), _READ)
        except (OSError, trio.BrokenResourceError):
            return b""

    async def aclose(self) -> None:
        await self._stream.aclose()
