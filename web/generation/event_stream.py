"""The body of a streamed answer: everything in the outbox becomes one write.

Between its first write and its last the stream leaves a sink with its outbox (actors/gateway/outbox.py). A step's text
then goes to the socket as an HTTP/1.1 chunk (RFC 9112, 7.1) without waking a task, if the connection supports it
and the client keeps up.

The generator holds no cancel scope across a `yield` and frees nothing; the surrounding exchange does (web/asgi.py).
The scope of its keep-alive interval is closed before each `yield`, and a cancelled drain takes no events.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import trio

from ...protocol.events import Failed, Finished, Sink, StreamEvent
from ..errors import unexpected
from ..exchange import LastPiece, WriteChunk
from .asked import Pieces


class EventSource(Protocol):
    """The reading end of an outbox (actors/gateway/outbox.py)."""

    id: str

    async def drain(self, sink: Sink | None = None) -> tuple[StreamEvent, ...]: ...

    def wake(self) -> None: ...


async def next_events(source: EventSource, silence: float, sink: Sink | None = None) -> tuple[StreamEvent, ...]:
    """Wait for events and take all. Empty after `silence` seconds, or when the sink wants attention."""
    with trio.move_on_after(silence):
        return await source.drain(sink)
    return ()


async def event_stream(
    source: EventSource,
    pieces: Pieces,
    first: tuple[StreamEvent, ...],
    keep_alive: float,
    write: WriteChunk | None = None,
) -> AsyncGenerator[bytes, None]:
    """`first`: events already taken from `source`. `write` puts a chunk on the connection at once if possible."""
    direct = _ChunkSink(pieces, write) if write is not None else None
    events, begun = first, False
    try:
        while True:
            data = pieces.encode(events)
            if direct is not None:
                data = direct.take_unwritten() + data
            if events and isinstance(events[-1], Finished | Failed):
                yield LastPiece(data)
                return
            # No data: send a keep-alive, which also flushes the rest of a chunk.
            if data or not events:
                yield data or pieces.keep_alive
                begun = True
            if direct is None or not begun:  # the head is sent with the first piece yielded
                events = await next_events(source, keep_alive)
                continue
            direct.wrote = direct.wants_attention = False
            events = await next_events(source, keep_alive, direct)
            while not events and direct.wrote and not direct.wants_attention:  # it was not silent meanwhile
                direct.wrote = False
                events = await next_events(source, keep_alive, direct)
    except Exception as error:
        yield LastPiece(pieces.failed(unexpected(error)))


class _ChunkSink:
    """Encodes a step's text and writes it as a chunk."""

    __slots__ = ("_pieces", "_unwritten", "_write", "wants_attention", "wrote")

    def __init__(self, pieces: Pieces, write: WriteChunk) -> None:
        self._pieces = pieces
        self._write = write
        self._unwritten = b""
        self.wrote = False
        self.wants_attention = False

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        data = self._pieces.encode(events) if events else b""
        if tokens:
            data += self._pieces.text(index, text, tokens)
        if not data:
            return True
        self.wrote = True
        written = self._write(b"%x\r\n%b\r\n" % (len(data), data))
        if written == "all":
            return True
        if written == "nothing":
            self._unwritten = data
        self.wants_attention = True
        return False

    def take_unwritten(self) -> bytes:
        data, self._unwritten = self._unwritten, b""
        return data
