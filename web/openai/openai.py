"""`respond` handles a request of either dialect, from its body to its answer, streamed or whole."""

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, Started, StreamEvent, Token
from ..errors import error_of
from ..exchange import STREAM_FIELDS, Content, Exchange, LastPiece, WriteChunk, json_content
from ..timers import Deadlines
from .answer import WholeAnswer
from .chunks import Chunks
from .decode import decode
from .dialect import Body, Dialect, Reply
from .explain import EXPLAIN_HEADER, EXPLAIN_SECONDS, Explainer, explained_stream
from .request import Origin, ServedModel
from .sse import EventSource, event_stream, next_events

if TYPE_CHECKING:
    from ...actors.observe.observe import Server

# Version, trace, span and flags: https://www.w3.org/TR/trace-context/. Anything else is ignored, without an error.
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?=-|$)")


async def respond(engine: "Server", openings: Deadlines, dialect: Dialect[Body], exchange: Exchange) -> Content:
    """Hands the request to the engine and answers; raises ApiError if the answer is an error status."""
    body = decode(await exchange.json_body(), dialect.decoder)
    request = dialect.generate(body, served_model(engine), _origin_of(engine, exchange))
    options = body.stream_options
    reply = Reply(
        dialect=dialect,
        id=dialect.id_prefix + request.id,
        created=int(time.time()),
        model=request.model,
        choices=len(request.prompts) * request.n,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
    explainer = Explainer(engine, request) if _wants_explanation(exchange) else None
    outbox = engine.gateway.submit(request)
    exchange.generation = request.id
    if not body.stream:
        data = await _whole(outbox, WholeAnswer(reply, logprobs=request.sampling.logprobs is not None))
        return json_content(data, extra=() if explainer is None else (await explainer.field(),))
    interval, write = engine.settings.keep_alive_interval, exchange.write_chunk
    return await _streamed(outbox, Chunks(reply), interval, write, explainer, openings)


def served_model(engine: "Server") -> ServedModel:
    """What requests are checked against; raises ApiError (503) while no worker has the model."""
    ready = engine.ready
    if ready is None:
        raise ApiError("engine_unavailable", "The model is not loaded at the moment.", retry_after=2)
    return ServedModel(engine.model_name, ready, engine.settings.limits)


def origin(engine: "Server", tenant: str) -> Origin:
    return Origin(engine.gateway.new_id(), tenant, trio.current_time())


def _origin_of(engine: "Server", exchange: Exchange) -> Origin:
    """The origin of an HTTP request, which has an X-Request-Id and may belong to a trace."""
    found = TRACEPARENT.match(exchange.headers.get("traceparent", ""))
    return origin(engine, exchange.tenant)._replace(name=exchange.request_id, traceparent=found[0] if found else "")


def _wants_explanation(exchange: Exchange) -> bool:
    value = exchange.headers.get(EXPLAIN_HEADER, "0")
    if value not in ("0", "1"):
        raise ApiError("invalid_value", f"The header {EXPLAIN_HEADER} must be 1 or 0.", param=EXPLAIN_HEADER)
    return value == "1"


async def _streamed(
    outbox: EventSource,
    chunks: Chunks,
    keep_alive: float,
    write: WriteChunk | None,
    explainer: Explainer | None,
    openings: Deadlines,
) -> Content:
    """Waits for the first events, so that a request refused by the engine gets its error status.

    A request that queues longer than the keep-alive interval is answered with 200 and comments until it starts. With
    an explanation, this happens sooner.
    """
    if explainer is None:
        first = await _first_events(outbox, keep_alive, openings)
    else:
        first = await next_events(outbox, min(keep_alive, EXPLAIN_SECONDS))
    if first and isinstance(first[-1], Failed) and not any(isinstance(event, Token) for event in first):
        raise error_of(first[-1])
    if explainer is not None:
        return Content(explained_stream(outbox, chunks, first, keep_alive, explainer, write), STREAM_FIELDS)
    if first and isinstance(first[-1], Finished):
        return Content(LastPiece(chunks.encode(first)), STREAM_FIELDS)
    return Content(event_stream(outbox, chunks, first, keep_alive, write), STREAM_FIELDS)


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


async def _whole(outbox: EventSource, answer: WholeAnswer) -> bytes:
    while True:
        events: tuple[StreamEvent, ...] = await outbox.drain()
        answer.extend(events)
        last = events[-1]
        if isinstance(last, Failed):
            raise error_of(last)
        if isinstance(last, Finished):
            return msgspec.json.encode(answer.body(last))
