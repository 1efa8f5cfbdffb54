"""`respond` handles a request of any dialect, from its body to its answer, streamed or whole."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, Started, StreamEvent, Token
from ..errors import error_of
from ..exchange import (
    EXPLAIN_HEADER,
    TIMEOUT_HEADER,
    Content,
    Exchange,
    Headers,
    LastPiece,
    WriteChunk,
    json_content,
)
from ..timers import Deadlines
from .asked import Asked, Origin, Pieces, Read, Whole
from .event_stream import EventSource, event_stream, next_events
from .explain import EXPLAIN_SECONDS, Explainer, explained_stream
from .models import fallback_models, reading
from .resumable_answers import ResumableAnswers

if TYPE_CHECKING:
    from ...actors.observe.server import ModelEngine, Server

# Version, trace, span and flags: https://www.w3.org/TR/trace-context/. Anything else is ignored, without an error.
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?=-|$)")


async def respond(
    server: "Server", openings: Deadlines, read: Read, exchange: Exchange, resumable: ResumableAnswers | None = None
) -> Content:
    """Reads the request, hands it to the engine and answers; raises ApiError if the answer is an error status."""
    asks = origin_of(server, exchange)
    async with reading(server, exchange.read_json, read, asks) as (engine, _, asked):
        return await answer(engine, openings, asked, exchange, resumable)


async def answer(
    engine: "ModelEngine",
    openings: Deadlines,
    asked: Asked,
    exchange: Exchange,
    resumable: ResumableAnswers | None = None,
) -> Content:
    """What follows once a request was read; raises ApiError if the answer is an error status.

    `resumable`: where dialects have a `disconnect_policy`.
    """
    request = asked.request
    if asked.waits is not None:
        refuse_explanation(exchange, "ask for it later, at /v1/requests/ID")
    explainer = Explainer(engine, request) if _wants_explanation(exchange) else None
    outbox = engine.gateway.submit(request)
    exchange.generation = request.id
    if isinstance(asked.answer, Whole):
        data = await whole(outbox, asked.answer)
        return json_content(data, extra=() if explainer is None else (await explainer.field(),))
    interval, write = engine.settings.keep_alive_interval, exchange.write_chunk
    begin = None
    if asked.waits is not None:
        assert resumable is not None
        begin = partial(resumable.start_events, request, outbox, asked.answer, seconds=asked.waits, exchange=exchange)
    return await _streamed(outbox, asked.answer, interval, write, explainer, openings, begin)


def deadline(headers: Headers, now: float) -> float | None:
    """When the request's or the handshake's `X-Request-Timeout` is over; raises ApiError (400) for what is no time."""
    text = headers.get(TIMEOUT_HEADER, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        problem = f"The header {TIMEOUT_HEADER} must be a number of seconds above 0."
        raise ApiError("invalid_value", problem, param=TIMEOUT_HEADER)
    return now + seconds


def origin(server: "Server", tenant: str, headers: Headers) -> Origin:
    """`headers` are those of the request, or of its socket's handshake. Raises ApiError (400) for a wrong timeout."""
    id, now = server.gateway.new_id(), trio.current_time()
    return Origin(id, tenant, now, fallbacks=fallback_models(headers), deadline=deadline(headers, now))


def origin_of(server: "Server", exchange: Exchange) -> Origin:
    """The origin of an HTTP request, which has an X-Request-Id and may belong to a trace."""
    found = TRACEPARENT.match(exchange.headers.get("traceparent", ""))
    asks = origin(server, exchange.tenant, exchange.headers)
    return asks._replace(name=exchange.request_id, traceparent=found[0] if found else "")


def _wants_explanation(exchange: Exchange) -> bool:
    value = exchange.headers.get(EXPLAIN_HEADER, "0")
    if value not in ("0", "1"):
        raise ApiError("invalid_value", f"The header {EXPLAIN_HEADER} must be 1 or 0.", param=EXPLAIN_HEADER)
    return value == "1"


def refuse_explanation(exchange: Exchange, remedy: str) -> None:
    """Raises ApiError (400) if an explanation is wanted of what is answered before it runs, or never does."""
    if _wants_explanation(exchange):
        message = f"{EXPLAIN_HEADER}: there is nothing to explain yet; {remedy}."
        raise ApiError("unsupported_parameter", message, param=EXPLAIN_HEADER)


async def _streamed(
    outbox: EventSource,
    pieces: Pieces,
    keep_alive: float,
    write: WriteChunk | None,
    explainer: Explainer | None,
    openings: Deadlines,
    begin: Callable[[tuple[StreamEvent, ...]], Content | None] | None,
) -> Content:
    """Waits for the first events, so that a request refused by the engine gets its error status.

    A request that queues longer than the keep-alive interval is answered with 200 and keep-alives until it starts. With
    an explanation, this happens sooner. `begin` goes on with the first events in a way of its own.
    """
    if explainer is None:
        first = await _first_events(outbox, keep_alive, openings)
    else:
        first = await next_events(outbox, min(keep_alive, EXPLAIN_SECONDS))
    if first and isinstance(first[-1], Failed) and not any(isinstance(event, Token) for event in first):
        raise error_of(first[-1])
    if begin is not None and (content := begin(first)) is not None:
        return content
    if explainer is not None:
        return Content(explained_stream(outbox, pieces, first, keep_alive, explainer, write), pieces.fields)
    if first and isinstance(first[-1], Finished):
        return Content(LastPiece(pieces.encode(first)), pieces.fields)
    return Content(event_stream(outbox, pieces, first, keep_alive, write), pieces.fields)


async def _first_events(outbox: EventSource, silence: float, openings: Deadlines) -> tuple[StreamEvent, ...]:
    """The events up to the first text, if it comes soon: head, start and text then leave in one write."""
    opening = _OpeningSink(outbox.id)
    openings.set(outbox, outbox.wake)
    try:
        events = await outbox.drain(opening)
    finally:
        openings.forget(outbox)
    return (*opening.events, *events) or await next_events(outbox, silence)


class _OpeningSink:
    """Keeps what comes before the first text and with it: a stream's start alone does not wake its reader."""

    __slots__ = ("_id", "events")

    def __init__(self, id: str) -> None:
        self._id = id
        self.events: list[StreamEvent] = []

    def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
        self.events += events
        if tokens:
            self.events.append(Token(id=self._id, index=index, text=text, tokens=tokens))
        return all(isinstance(event, Started) for event in self.events)


async def whole(outbox: EventSource, answer: Whole) -> bytes:
    """The answer's body as JSON. Raises ApiError if the request fails."""
    while True:
        events: tuple[StreamEvent, ...] = await outbox.drain()
        answer.extend(events)
        last = events[-1]
        if isinstance(last, Failed):
            raise answer.worded(error_of(last))
        if isinstance(last, Finished):
            return msgspec.json.encode(answer.body(last))
