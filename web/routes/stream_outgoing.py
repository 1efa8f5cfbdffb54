"""A WebSocket's outgoing messages: straight to the connection while the client keeps up, otherwise sent by a task.

The order of `post` is the order on the wire: once a message waits, all later ones wait behind it. The sending task
lives only while messages wait, so a socket that keeps up has none.
"""

from collections.abc import Callable, Sequence

import trio

from ...protocol.events import Failed, Finished, StreamEvent
from ..exchange import Wire
from ..generation.event_stream import EventSource
from .frames import Frames

Post = Callable[[bytes], trio.Event | None]  # of a frame: None if it was written, else an event set when it was sent


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

    async def flush(self) -> None:
        """Wait until no message waits."""
        while self._sent is not None:
            await self._sent.wait()

    async def _send_waiting(self) -> None:
        leaving: trio.Event | None = None
        try:
            await self._wire.finish()
            while self._waiting:
                frames, self._waiting = self._waiting, []
                leaving, self._sent = self._sent, trio.Event()
                for frame in frames:
                    await self._wire.send(frame)
                assert leaving is not None
                leaving.set()
        finally:  # also when the socket ends: an answer that outlives it must not wait for it
            for sent in (leaving, self._sent):
                if sent is not None:
                    sent.set()
            self._sent = None


class FrameSink:
    """A stream's sink: turns a step's tokens into messages without a task."""

    __slots__ = ("_frames", "_post", "unsent")

    def __init__(self, frames: Frames, post: Post) -> None:
        self._frames = frames
        self._post = post
        self.unsent: trio.Event | None = None

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        if events:
            self.unsent = post_all(self._post, self._frames.encode(events))
        if tokens:
            self.unsent = self._post(self._frames.text(index, text, tokens))
        return self.unsent is None


def post_all(post: Post, frames: Sequence[bytes]) -> trio.Event | None:
    """Post each of them; the event is that of the last."""
    sent: trio.Event | None = None
    for frame in frames:
        sent = post(frame)
    return sent


async def send_answer(outbox: EventSource, frames: Frames, post: Post, on_end: Callable[[], None]) -> None:
    """Post one request's events, no faster than they are sent. `on_end` is called before the last one."""
    ended = False
    sink = FrameSink(frames, post)
    while not ended:
        events = await outbox.drain(sink)
        unsent, sink.unsent = sink.unsent, None
        if events:
            ended = isinstance(events[-1], Finished | Failed)
            if ended:
                on_end()
            unsent = post_all(post, frames.encode(events))  # after what the sink left
        if unsent is not None:
            await unsent.wait()
