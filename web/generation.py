"""From a valid request to its response, streamed or whole, for both dialects."""

import time
from typing import TYPE_CHECKING, Literal

import msgspec
import trio
from quart_trio.wrappers import TrioResponse as Response

from ..protocol.errors import ApiError
from ..protocol.events import Failed, Finished, StreamEvent, Token
from ..protocol.openai_requests import GenerateBody
from ..protocol.requests import Generate
from .answer import Answer
from .chunks import Chunks, Reply
from .connection import current_exchange
from .dialect import Origin, Served
from .direct import WriteChunk, chunk_writer
from .errors import error_of
from .sse import EventSource, event_stream, next_events

if TYPE_CHECKING:
    from ..actors.engine import Engine

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second: nginx must not collect chunks


def served(engine: "Engine") -> Served:
    """What requests are checked against; raises ApiError (503) while no worker has the model."""
    ready = engine.ready
    if ready is None:
        raise ApiError("engine_unavailable", "The model is not loaded at the moment.", retry_after=2)
    return Served(engine.model_name, ready, engine.settings.limits)


def origin(engine: "Engine", tenant: str) -> Origin:
    return Origin(engine.gateway.new_id(), tenant, trio.current_time())


def reply_to(body: GenerateBody, request: Generate, dialect: Literal["chat", "completion"]) -> Reply:
    options = body.stream_options
    return Reply(
        dialect=dialect,
        id=("chatcmpl-" if dialect == "chat" else "cmpl-") + request.id,
        created=int(time.time()),
        model=request.model,
        choices=len(request.prompts) * request.n,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )


async def respond(engine: "Engine", body: GenerateBody, request: Generate, reply: Reply) -> Response:
    """Hands the request to the engine and answers; raises ApiError where the answer is an error's status."""
    outbox = engine.gateway.submit(request)
    current_exchange().generation = request.id
    if body.stream:
        write = chunk_writer(current_exchange().scope)
        return await _streamed(outbox, Chunks(reply), engine.settings.keep_alive_interval, write)
    return await _whole(outbox, Answer(reply, logprobs=request.sampling.logprobs is not None))


async def _streamed(outbox: EventSource, chunks: Chunks, keep_alive: float, write: WriteChunk | None) -> Response:
    """Waits for the first events, so that a request which the engine refuses gets the status of its error.

    A request that queues longer than the keep-alive interval is answered with 200 and comments until its turn comes.
    """
    first = await next_events(outbox, keep_alive)
    if first and isinstance(first[-1], Failed) and not any(isinstance(event, Token) for event in first):
        raise error_of(first[-1])
    response = Response(event_stream(outbox, chunks, first, keep_alive, write), headers=STREAM_HEADERS)
    response.content_type = "text/event-stream; charset=utf-8"
    response.timeout = None
    return response


async def _whole(outbox: EventSource, answer: Answer) -> Response:
    while True:
        events: tuple[StreamEvent, ...] = await outbox.drain()
        answer.extend(events)
        last = events[-1]
        if isinstance(last, Failed):
            raise error_of(last)
        if isinstance(last, Finished):
            return Response(msgspec.json.encode(answer.body(last)), content_type="application/json")
