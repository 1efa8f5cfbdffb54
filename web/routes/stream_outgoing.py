"""A WebSocket's outgoing messages: straight to the connection while the client keeps up, otherwise sent by a task.

The order of `post` is the order on the wire: once a message waits, all later ones wait behind it. The sending task
lives only while messages wait, so a socket that keeps up has none.
"""

from collections.abc import Sequence

import trio

from ...protocol.events import StreamEvent
from ..exchange import Wire
from .frames import Frames


class Outgoing:
    """One socket's messages."""

    __slots__ = ("_sent", "_waiting", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: list[bytes] = []
        self._sent: trio.Event | None = None  # of what waits now; None: the task does not run

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def post(self, frame: bytes) -> trio.Event | None:
        """Write or queue a message without waiting. None if it was written, else an event set when it was sent."""
        if self._sent is None:
            written = self._wire.write_now(frame)
            if written == "all":
                return None
            if written == "nothing":
                self._waiting.append(frame)
            self._sent = trio.Event()
            self._wire.nursery.start_soon(self._send_waiting)
        else:
            self._waiting.append(frame)
        return self._sent

    def post_all(self, frames: Sequence[bytes]) -> trio.Event | None:
        """`post` each of them; the event is that of the last."""
        sent: trio.Event | None = None
        for frame in frames:
            sent = self.post(frame)
        return sent

    async def flush(self) -> None:
        """Wait until no message waits."""
        while self._sent is not None:
            await self._sent.wait()

    async def _send_waiting(self) -> None:
        await self._wire.finish()
        while self._waiting:
            frames, self._waiting = self._waiting, []
            sent, self._sent = self._sent, trio.Event()
            assert sent is not None
            for frame in frames:
                await self._wire.send(frame)
            sent.set()
        assert self._sent is not None
        self._sent.set()
        self._sent = None


class FrameSink:
    """A stream's sink: turns a step's tokens into messages without a task."""

    __slots__ = ("_frames", "_outgoing", "unsent")

    def __init__(self, frames: Frames, outgoing: Outgoing) -> None:
        self._frames = frames
        self._outgoing = outgoing
        self.unsent: trio.Event | None = None

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        if events:
            self.unsent = self._outgoing.post_all(self._frames.encode(events))
        if tokens:
            self.unsent = self._outgoing.post(self._frames.text(index, text, tokens))
        return self.unsent is None
