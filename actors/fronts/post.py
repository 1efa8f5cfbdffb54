"""The sending end of a link for one who must never wait: a message goes into the socket now, or into a bounded backlog.

The scheduler's process speaks through it to each web process. A peer that does not read fills its own backlog and
nobody else's time; beyond the bound it is `overdue`, and whoever watches it gives it up. Once a message was not kept
nothing more is sent, whatever the peer reads by then: what follows could mean something else without it.
"""

import os
from typing import Final

import trio

from ...protocol.message import Message
from ..supervisor.frame import MAX_FRAME, FrameWriter

MAX_BACKLOG: Final = MAX_FRAME  # one message of the largest size; of ordinary text, minutes


class Post:
    """Frames to one peer, in order."""

    def __init__(self, stream: trio.SocketStream, max_backlog: int = MAX_BACKLOG) -> None:
        self._stream = stream
        self._max_backlog = max_backlog
        self._frames = FrameWriter()
        self._backlog = bytearray()
        self._lost = False  # a message was not kept
        self._sending = False  # `run` has taken a piece of the backlog
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._sent.set()

    def send_nowait(self, message: Message) -> None:
        """Send, or keep for later; nothing is kept beyond the bound. Raises LinkError for too large a message."""
        frame = self._frames.write(message)
        if self.overdue:
            self._lost = True
            return
        sent = 0
        if not self._backlog and not self._sending:
            try:
                sent = os.write(self._stream.socket.fileno(), frame)
            except OSError:  # its buffer is full, or the peer is gone: `run` finds out which
                sent = 0
        if sent < len(frame):
            self._backlog += memoryview(frame)[sent:]
            self._wake.set()
            if self._sent.is_set():
                self._sent = trio.Event()

    @property
    def overdue(self) -> bool:
        """Whether the bound is passed, or was when there was something to send."""
        return self._lost or len(self._backlog) > self._max_backlog

    async def wait_sent(self) -> None:
        """Until the socket has taken everything: for a sender that can wait."""
        await self._sent.wait()

    async def run(self) -> None:
        """Send what is left over until cancelled. The peer's end is a `trio.BrokenResourceError`."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._backlog:
                piece, self._backlog = self._backlog, bytearray()
                self._sending = True
                await self._stream.send_all(piece)
                self._sending = False
            self._sent.set()
