"""The body of a streamed answer: whatever the outbox holds becomes one write.

The generator holds no cancel scope across a `yield` and frees nothing: the exchange around it does (web/connection.py).
Its scope for the keep-alive interval is closed before it yields, and a drain that was cancelled took no events.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import trio

from ..protocol.events import Failed, Finished, StreamEvent
from .chunks import KEEP_ALIVE, Chunks
from .errors import error_of, unexpected


class EventSource(Protocol):
    """The reading end of an outbox (actors/outbox.py)."""

    async def drain(self) -> tuple[StreamEvent, ...]: ...


async def next_events(source: EventSource, silence: float) -> tuple[StreamEvent, ...]:
    """All events that are there, once there are some; none after so many seconds of silence."""
    with trio.move_on_after(silence):
        return await source.drain()
    return ()


async def event_stream(
    source: EventSource, chunks: Chunks, first: tuple[StreamEvent, ...], keep_alive: float
) -> AsyncGenerator[bytes, None]:
    """`first` are the events already taken from `source`."""
    events = first
    try:
        while True:
            data = encode(events, chunks) if events else KEEP_ALIVE
            if data:
                yield data
            if events and isinstance(events[-1], Finished | Failed):
                return
            events = await next_events(source, keep_alive)
    except Exception as error:
        yield chunks.failed(unexpected(error).body())


def encode(events: Sequence[StreamEvent], chunks: Chunks) -> bytes:
    parts: list[bytes] = []
    for event in events:
        if isinstance(event, Finished):
            parts.append(chunks.finished(event.reason, event.usage))
        elif isinstance(event, Failed):
            parts.append(chunks.failed(error_of(event).body()))
        else:
            parts.append(chunks.encode(event))
    return b"".join(parts)
