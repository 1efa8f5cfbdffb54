"""POST /v1/responses: OpenAI's Responses API as a translation, from its body to a chat and back from the events.

A response is stored before its client sees the end, so that the next request can continue it.
"""

import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ...protocol.errors import ApiError
from ...protocol.requests import Generate
from ...protocol.response_items import InputItem, ItemReference
from ...protocol.response_requests import CreateResponse
from ..exchange import Content, Exchange, LastPiece
from ..generation.asked import Asked, Origin, ServedModel
from ..generation.generation import answer, origin_of, refuse_explanation
from ..generation.models import reading
from ..timers import Deadlines
from .answer import GrowingResponse
from .background import BackgroundResponses
from .body import read_body
from .events import ResponseEvents
from .reply import begun_response
from .request import generate_from_response, items_of, restated
from .store import ResponseStore, stored_row
from .truncation import truncate
from .whole import WholeResponse

if TYPE_CHECKING:
    from ...actors.observe.server import ModelEngine, Server

_LOG: Final = logging.getLogger("triolet.http")


class Read(NamedTuple):
    """A body, the items of its input, and the request if nothing stored is needed for it."""

    body: CreateResponse
    items: list[InputItem]
    request: Generate | None


class KnownConversation(NamedTuple):
    """All items up to the response `id`, and whether they are stored too."""

    id: str
    items: list[InputItem]
    stored: bool


class PreparedResponse(NamedTuple):
    """What a request adds to its conversation, and what came before."""

    request: Generate
    growing: GrowingResponse
    earlier: list[InputItem]
    items: list[InputItem]
    stored: bool
    behind_stored: bool  # what came before is stored, or nothing did


class Responses:
    """Handles the requests of this API that generate."""

    def __init__(
        self, engine: "Server", openings: Deadlines, store: ResponseStore, background: BackgroundResponses
    ) -> None:
        self._engine = engine
        self._openings = openings
        self._store = store
        self._background = background

    async def create(self, exchange: Exchange) -> Content:
        """Raises ApiError if the answer is an error status."""
        asks = origin_of(self._engine, exchange)
        async with reading(self._engine, exchange.read_json, read_response, asks) as (engine, served, read):
            turn = await self.prepare(engine, read, served, asks)
            return await self._answer(engine, read.body, turn, exchange)

    async def _answer(
        self, engine: "ModelEngine", body: CreateResponse, turn: PreparedResponse, exchange: Exchange
    ) -> Content:
        request, growing = turn.request, turn.growing
        if body.background:
            refuse_explanation(exchange, "ask for it later, at /v1/requests/ID with the response's id")
            return await self._background.start(engine, request, growing, turn.items)
        form = ResponseEvents(growing) if body.stream else WholeResponse(growing)
        try:
            content = await answer(engine, self._openings, Asked(request, form), exchange)
        except ApiError as error:
            raise restated(error) from None
        if not turn.stored:
            return content
        keep = partial(self.keep, turn)
        if isinstance(content.body, bytes):
            await keep()
            return content
        return content._replace(body=_kept(content.body, keep))

    async def prepare(
        self,
        engine: "ModelEngine",
        read: Read,
        served: ServedModel,
        asks: Origin,
        last: KnownConversation | None = None,
    ) -> PreparedResponse:
        """`last`: a conversation that is known without the store. Raises ApiError (400, 404)."""
        body, items, request = read
        stored = self._store.wanted(body)
        earlier: list[InputItem] = []
        behind_stored = True
        if request is None:
            previous = body.previous_response_id
            if last is not None and last.id == previous:
                earlier, previous, behind_stored = last.items, None, last.stored
            if previous is not None or _has_references(items):
                recalled, items = await self._store.recall(previous, items, asks.tenant)
                earlier = earlier or recalled
            request = generate_from_response(body, earlier, items, served, asks)
        if body.truncation == "auto":
            request = await truncate(engine, request, served.ready.context_length)
        response = begun_response(body, request, int(time.time()), store=stored)
        return PreparedResponse(request, GrowingResponse(response, request.id), earlier, items, stored, behind_stored)

    async def keep(self, turn: PreparedResponse) -> bool:
        """Store the response, with its whole conversation as its input if that is not stored.

        A disk that is full does not cost the client its answer; returns False.
        """
        items = turn.items if turn.behind_stored else [*turn.earlier, *turn.items]
        row = stored_row(turn.growing.response, items, turn.request.tenant)
        if not turn.behind_stored:
            row = row._replace(previous=None)
        try:
            await self._store.keep(row)
        except (sqlite3.Error, OSError):
            _LOG.exception("a response could not be stored")
            return False
        return True


def read_response(served: ServedModel, origin: Origin, data: bytes) -> Read:
    """Raises ApiError (400, 404)."""
    body = read_body(data)
    items = items_of(body)
    if body.previous_response_id is not None or _has_references(items):
        return Read(body, items, None)
    return Read(body, items, generate_from_response(body, (), items, served, origin))


def _has_references(items: list[InputItem]) -> bool:
    return any(isinstance(item, ItemReference) for item in items)


async def _kept(
    stream: AsyncGenerator[bytes, None], keep: Callable[[], Awaitable[object]]
) -> AsyncGenerator[bytes, None]:
    """The same stream; what it said is kept before its last piece leaves."""
    async with aclosing(stream) as pieces:
        async for piece in pieces:
            if isinstance(piece, LastPiece):
                await keep()
            yield piece
