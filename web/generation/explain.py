"""The request header `X-Triolet-Explain: 1`: the answer explains where the request is in the scheduler.

A stream gets explanations: one at the start, even if its first text is already there, then one per change until that
text, at most every EXPLAIN_SECONDS. Among server-sent events they are comments, `: explain {…}`; clients that do not
know them skip them. Since the stream begins that early, a later error is an `error` event and not a status. Without
streaming, a response header of the same name explains the finished request.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent, Token
from ...protocol.explanation import Explanation
from ...protocol.requests import Generate
from ..exchange import EXPLAIN_HEADER, Field, WriteChunk
from .asked import Pieces
from .event_stream import EventSource, event_stream, next_events

if TYPE_CHECKING:
    from ...actors.observe.server import ModelEngine

EXPLAIN_SECONDS: Final = 0.25


class Explainer:
    """Explains one request in its stream or in a header."""

    def __init__(self, engine: "ModelEngine", request: Generate) -> None:
        self._engine = engine
        self._id = request.id
        self._tenant = request.tenant
        self._sent: Explanation | None = None

    async def news(self) -> Explanation | None:
        """The explanation if it has changed. A new estimate alone does not count."""
        try:
            found = await self._engine.explain(self._id, self._tenant)
        except ApiError:  # the scheduler's process did not answer in time; the next one may
            return None
        if found is None or (self._sent and found == msgspec.structs.replace(self._sent, eta_ms=found.eta_ms)):
            return None
        self._sent = found
        return found

    async def field(self) -> Field:
        """The whole explanation in one line of ASCII. Its only text from the client is the X-Request-Id."""
        found = await self._engine.explain(self._id, self._tenant)
        return EXPLAIN_HEADER.lower().encode(), msgspec.json.encode(found)


async def explained_stream(
    source: EventSource,
    pieces: Pieces,
    first: tuple[StreamEvent, ...],
    keep_alive: float,
    explainer: Explainer,
    write: WriteChunk | None,
) -> AsyncGenerator[bytes, None]:
    """Sends explanations until the first text or the end, at least one; from then on it is an ordinary stream."""
    events, silent = first, 0.0
    if _has_text_or_end(first) and (news := await explainer.news()):
        yield pieces.explained(news)
    while not _has_text_or_end(events):
        data, news = pieces.encode(events), await explainer.news()
        if news is not None:
            data += pieces.explained(news)
        if data:
            silent = 0.0
            yield data
        elif (silent := silent + EXPLAIN_SECONDS) >= keep_alive:
            silent = 0.0
            yield pieces.keep_alive
        events = await next_events(source, EXPLAIN_SECONDS)
    async with aclosing(event_stream(source, pieces, events, keep_alive, write)) as stream:
        async for data in stream:
            yield data


def _has_text_or_end(events: tuple[StreamEvent, ...]) -> bool:
    return any(isinstance(event, Token | Finished | Failed) for event in events)
