"""Typed messages over a byte stream between two of our processes, in the frames of frame.py.

A frame's length is capped: whoever reads a longer one has lost the border, and stops instead of allocating. One task
receives, several may send. The peer's end, however it comes, is `trio.EndOfChannel` to the reader and
`trio.BrokenResourceError` to the writer.

Who can wait uses `send`; who must not, `send_nowait`, with `keep_sending` in a task of its own: the message goes into
the socket now, or into a bounded backlog. A peer that does not read fills its own backlog and nobody else's time;
beyond the bound it is `overdue`, and whoever watches it gives it up. Once it has not kept a message it sends no other,
whatever the peer reads by then: what follows could mean something else without it.
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

MAX_BACKLOG: Final = MAX_FRAME  # one message of the largest size; of ordinary text, minutes
_READ: Final = 1 << 16


class Link(Generic[Received]):
    """One end of the connection; `decoder` knows the union of the messages that may arrive."""

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        decoder: msgspec.msgpack.Decoder[Received],
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self._stream = stream
        self._decode = decoder.decode
        self._max_backlog = max_backlog
        self._outgoing = FrameWriter()
        self._incoming = bytearray()
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._backlog = bytearray()
        self._lost = False  # a message was not kept
        self._sending = trio.Lock()  # held by the task that has taken a piece of the backlog
        self._wake = trio.Event()  # of `keep_sending`

    async def send(self, message: Message) -> None:
        """Send one message and wait until the socket took it; without a checkpoint when it takes it at once."""
        if not self._write(self._outgoing.write(message)):
            await self._send_backlog()

    def send_nowait(self, message: Message) -> None:
        """Send, or keep for later; nothing is kept beyond the bound. Raises LinkError for too large a message."""
        frame = self._outgoing.write(message)
        if self.overdue:
            self._lost = True
        elif not self._write(frame):
            self._wake.set()

    @property
    def overdue(self) -> bool:
        """Whether the bound is passed, or was when there was something to send."""
        return self._lost or len(self._backlog) > self._max_backlog

    async def keep_sending(self) -> None:
        """Send what is left over until cancelled. The peer's end is a `trio.BrokenResourceError`."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self._send_backlog()

    def _write(self, frame: bytearray) -> bool:
        """Give the socket what it takes at once and keep the rest; whether that was all of it."""
        sent = 0
        if self._socket is not None and not self._backlog and not self._sending.locked():
            # Its buffer is full, or the peer is gone: who sends the rest finds out which.
            with suppress(OSError):
                sent = os.write(self._socket.fileno(), frame)
        if sent == len(frame):
            return True
        self._backlog += memoryview(frame)[sent:]  # a copy: the buffer is the next message's
        return False

    async def _send_backlog(self) -> None:
        async with self._sending:
            while self._backlog:
                piece, self._backlog = self._backlog, bytearray()
                await self._stream.send_all(piece)

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
