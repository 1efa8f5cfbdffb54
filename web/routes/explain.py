"""Why is my request waiting: GET /v1/requests/{id}, and the header `X-Triolet-Explain: 1` on a request itself.

A stream that asks gets comments, `: explain {…}`, until its first text: when it starts, and then whenever something
has changed, at most every EXPLAIN_SECONDS. Clients that do not know them skip them. The stream begins that early, too,
so an error that comes later is an `error` event and no status. An answer that is not streamed has the explanation of
the finished request in a header of the same name.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent, Token
from ...protocol.explanation import Explanation
from ..asgi import Application, current_exchange
from ..exchange import Exchange, Field
from ..openai.chunks import KEEP_ALIVE, Chunks
from ..openai.sse import EventSource, encode, next_events

if TYPE_CHECKING:
    from ...actors.engine import Engine

HEADER: Final = "X-Triolet-Explain"
EXPLAIN_SECONDS: Final = 0.25
_PREFIXES: Final = ("chatcmpl-", "cmpl-")  # of the ids in answers

Rest = Callable[[tuple[StreamEvent, ...]], AsyncGenerator[bytes, None]]


def asks(exchange: Exchange) -> bool:
    """Whether the request wants to be explained; raises ApiError (400)."""
    value = exchange.headers.get(HEADER, "0")
    if value not in ("0", "1"):
        raise ApiError("invalid_value", f"The header {HEADER} must be 1 or 0.", param=HEADER)
    return value == "1"


async def explanation(engine: "Engine", wanted: str, tenant: str) -> Explanation:
    """Of a request of this tenant, by whatever name it has; raises ApiError (404)."""
    found = await engine.explain(wanted, tenant)
    for prefix in _PREFIXES:
        if found is None and wanted.startswith(prefix):
            found = await engine.explain(wanted.removeprefix(prefix), tenant)
    if found is None:
        raise ApiError("not_found", "There is no such request: its id is wrong, or it ended long ago.", param="id")
    return found


class Explainer:
    """The comments of one stream."""

    def __init__(self, engine: "Engine", id: str, tenant: str) -> None:
        self._engine = engine
        self._id = id
        self._tenant = tenant
        self._said: Explanation | None = None

    async def comment(self) -> bytes:
        """What is new since the last one; nothing when only the estimate is."""
        try:
            found = await self._engine.explain(self._id, self._tenant)
        except ApiError:  # the scheduler's process did not answer in time; the next comment may know more
            return b""
        if found is None or (self._said and found == msgspec.structs.replace(self._said, eta_ms=found.eta_ms)):
            return b""
        self._said = found
        return b": explain " + msgspec.json.encode(found) + b"\n\n"

    async def field(self) -> Field:
        """The whole explanation, in one line of ASCII: no text of the client but its X-Request-Id is in it."""
        found = await self._engine.explain(self._id, self._tenant)
        return HEADER.lower().encode(), msgspec.json.encode(found)


async def explained_stream(
    source: EventSource,
    chunks: Chunks,
    first: tuple[StreamEvent, ...],
    keep_alive: float,
    explainer: Explainer,
    rest: Rest,
) -> AsyncGenerator[bytes, None]:
    """Comments until the first text or the end; with that, `rest` takes over."""
    events, silent = first, 0.0
    while not any(isinstance(event, Token | Finished | Failed) for event in events):
        if data := encode(events, chunks) + await explainer.comment():
            silent = 0.0
            yield data
        elif (silent := silent + EXPLAIN_SECONDS) >= keep_alive:
            silent = 0.0
            yield KEEP_ALIVE
        events = await next_events(source, EXPLAIN_SECONDS)
    async with aclosing(rest(events)) as stream:
        async for data in stream:
            yield data


def register(app: Application) -> None:
    engine = app.engine

    @app.get("/v1/requests/<id>")
    async def explain_request(id: str) -> Response:
        found = await explanation(engine, id, current_exchange().tenant)
        return Response(msgspec.json.encode(found), content_type="application/json")
