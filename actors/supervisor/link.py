"""Typed messages over a byte stream between two of our processes, in the frames of frame.py.

A frame's length is capped: a reader of a longer one has lost the frame boundary, and stops instead of allocating. One
task receives, several may send. When the peer ends, for any reason, the reader gets `trio.EndOfChannel` and the writer
`trio.BrokenResourceError`.

Use `send` if you can wait, otherwise `send_nowait`, with `keep_sending` in its own task: the message goes into the
socket at once, or into a bounded backlog. A peer that does not read fills its backlog and delays nobody. Above the
bound it is `overdue`, and its owner gives it up. Once a message was dropped, nothing more is sent, even if the peer
reads again: later messages could mean something else without it.
"""

import os
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec
import trio

from ...protocol.message import Message
from .frame import HEADER, MAX_FRAME, UNREADABLE, FrameWriter, LinkError

__all__ = ["HEADER", "MAX_FRAME", "Link", "LinkError"]

Received = TypeVar("Received", bound=Message)

MAX_BACKLOG: Final = MAX_FRAME  # one message of the largest size, or minutes of ordinary text
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
        self._lost = False  # a message was dropped
        self._sending = trio.Lock()  # held by the task that sends a piece of the backlog
        self._wake = trio.Event()  # of `keep_sending`

    async def send(self, message: Message) -> None:
        """Send one message and wait until the socket has taken it; no checkpoint if it takes it at once.

        Raises `trio.BrokenResourceError` if the peer has ended, or if a message was dropped before.
        """
        if self._lost:
            raise trio.BrokenResourceError("a message to this peer was dropped")
        if not self._write(self._outgoing.write(message)):
            await self._send_backlog()

    def send_nowait(self, message: Message) -> None:
        """Send, or keep for later; drops messages above the bound. Raises LinkError if a message is too large."""
        frame = self._outgoing.write(message)
        if self.overdue:
            self._lost = True
        elif not self._write(frame):
            self._wake.set()

    @property
    def overdue(self) -> bool:
        """Whether the bound is exceeded, or was when a message had to be kept."""
        return self._lost or len(self._backlog) > self._max_backlog

    async def keep_sending(self) -> None:
        """Send the backlog until cancelled. Raises `trio.BrokenResourceError` when the peer ends."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self._send_backlog()

    def _write(self, frame: bytearray) -> bool:
        """Write what the socket takes at once and keep the rest; returns whether nothing was left."""
        sent = 0
        if self._socket is not None and not self._backlog and not self._sending.locked():
            # Its buffer is full, or the peer is gone: sending the rest finds out which.
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
        except UNREADABLE as error:
            raise LinkError(f"a frame of {len(frame)} bytes is no message: {error}") from error

    async def _receive_frame(self) -> bytes:
        """The content of the next frame; checkpoints only if it has not arrived."""
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
        """Wait for bytes and return them; empty at the end."""
        try:
            if self._socket is None:
                return bytes(await self._stream.receive_some(_READ))
            while True:
                # trio's streams try to read first, which fails for every message but a second one.
                await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError):
                    return os.read(self._socket.fileno(), _READ)
        except (OSError, trio.BrokenResourceError):
            return b""

    async def aclose(self) -> None:
        await self._stream.aclose()
