"""One request's events posted as the messages of its client, no faster than they are sent. `post` decides what becomes
of a message: it is written to a socket, kept, or both.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent
from .event_stream import EventSource

Post = Callable[[bytes], trio.Event | None]  # of a message: None if it was written, else an event set when it was sent


class Encoder(Protocol):
    """Makes messages of events; its order is the order of its calls."""

    def encode(self, events: Sequence[StreamEvent]) -> list[bytes]: ...

    def text(self, index: int, text: str, tokens: int) -> bytes: ...

    def failed(self, error: ApiError) -> bytes: ...


class PostingSink:
    """A stream's sink: turns a step's tokens into messages without a task."""

    __slots__ = ("_encoder", "_post", "unsent")

    def __init__(self, encoder: Encoder, post: Post) -> None:
        self._encoder = encoder
        self._post = post
        self.unsent: trio.Event | None = None

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        if events:
            self.unsent = post_all(self._post, self._encoder.encode(events))
        if tokens:
            self.unsent = post_all(self._post, (self._encoder.text(index, text, tokens),), self.unsent)
        return self.unsent is None


def post_all(post: Post, messages: Sequence[bytes], unsent: trio.Event | None = None) -> trio.Event | None:
    """Post each of them, behind what is `unsent`; the event is that of the last that has one."""
    for message in messages:
        sent = post(message)
        if sent is not None:
            unsent = sent
    return unsent


async def send_answer(
    outbox: EventSource,
    encoder: Encoder,
    post: Post,
    on_end: Callable[[], None],
    until_sent: Callable[[trio.Event], Awaitable[None]] = trio.Event.wait,
) -> None:
    """Post one request's events, no faster than they are sent. `on_end` is called before the last one."""
    ended = False
    sink = PostingSink(encoder, post)
    while not ended:
        events = await outbox.drain(sink)
        unsent, sink.unsent = sink.unsent, None
        if events:
            ended = isinstance(events[-1], Finished | Failed)
            messages = encoder.encode(events)  # first: where it fails, the end is still to come
            if ended:
                on_end()
            unsent = post_all(post, messages, unsent)  # after what the sink left
        if unsent is not None:
            await until_sent(unsent)
