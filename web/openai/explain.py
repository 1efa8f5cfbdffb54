"""The request header `X-Triolet-Explain: 1`: the answer explains where the request is in the scheduler.

A stream gets comments, `: explain {…}`, until its first text: one at the start, then one per change, at most every
EXPLAIN_SECONDS. Clients that do not know them skip them. Since the stream begins that early, a later error is an
`error` event and not a status. Without streaming, a response header of the same name explains the finished request.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent, Token
from ...protocol.explanation import Explanation
from ...protocol.requests import Generate
from ..exchange import Field, WriteChunk
from .chunks import KEEP_ALIVE, Chunks
from .sse import EventSource, event_stream, next_events

if TYPE_CHECKING:
    from ...actors.observe.observe import Server

EXPLAIN_HEADER: Final = "X-Triolet-Explain"
EXPLAIN_SECONDS: Final = 0.25


class Explainer:
    """Explains one request in SSE comments or in a header."""

    def __init__(self, engine: "Server", request: Generate) -> None:
        self._engine = engine
        self._id = request.id
        self._tenant = request.tenant
        self._sent: Explanation | None = None

    async def comment(self) -> bytes:
        """The explanation as a comment if it has changed. A new estimate alone does not count."""
        try:
            found = await self._engine.explain(self._id, self._tenant)
        except ApiError:  # the scheduler's process did not answer in time; the next comment may have it
            return b""
        if found is None or (self._sent and found == msgspec.structs.replace(self._sent, eta_ms=found.eta_ms)):
            return b""
        self._sent = found
        return b": explain " + msgspec.json.encode(found) + b"\n\n"

    async def field(self) -> Field:
        """The whole explanation in one line of ASCII. Its only text from the client is the X-Request-Id."""
        found = await self._engine.explain(self._id, self._tenant)
        return EXPLAIN_HEADER.lower().encode(), msgspec.json.encode(found)


async def explained_stream(
    source: EventSource,
    chunks: Chunks,
    first: tuple[StreamEvent, ...],
    keep_alive: float,
    explainer: Explainer,
    write: WriteChunk | None,
) -> AsyncGenerator[bytes, None]:
    """Sends comments until the first text or the end; from then on it is an ordinary stream."""
    events, silent = first, 0.0
    while not any(isinstance(event, Token | Finished | Failed) for event in events):
        if data := chunks.encode(events) + await explainer.comment():
            silent = 0.0
            yield data
        elif (silent := silent + EXPLAIN_SECONDS) >= keep_alive:
            silent = 0.0
            yield KEEP_ALIVE
        events = await next_events(source, EXPLAIN_SECONDS)
    async with aclosing(event_stream(source, chunks, events, keep_alive, write)) as stream:
        async for data in stream:
            yield data
