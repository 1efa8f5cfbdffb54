"""GET /v1/responses as a WebSocket: one response after another, each begun by a `response.create`.

The events are those of the stream. A request that is refused is answered by an `error` event. The conversation of the
last response is kept with the socket, so that `previous_response_id` continues it though it was not stored.
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished
from ...protocol.response_answers import ResponseErrorEvent
from ..auth import Keys
from ..errors import unexpected
from ..exchange import Handshake, Headers, Wire
from ..generation.asked import Origin, ServedModel
from ..generation.event_stream import EventSource
from ..generation.generation import origin
from ..generation.models import message_reader, reading
from ..generation.posting import post_all
from ..generation.sse import encode
from ..openai.decode import decode
from ..responses.events import ResponseEvents
from ..responses.request import restated
from ..responses.responses import KnownConversation, PreparedResponse, Read, Responses, read_response
from ..responses.stored_rows import MAX_CONVERSATION_BYTES, said_items
from .stream import GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION, UNSUPPORTED_DATA
from .stream_outgoing import Outgoing

if TYPE_CHECKING:
    from ...actors.observe.server import Server

MAX_WAITING: Final = 64  # messages for a client that does not read but sends on; beyond this it is closed
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


class ResponseSocket:
    """One client's connection."""

    def __init__(self, engine: "Server", responses: Responses, tenant: str, headers: Headers) -> None:
        self._engine = engine
        self._responses = responses
        self._tenant = tenant
        self._headers = headers  # of the handshake
        self._running: str | None = None  # the request whose response is made
        self._busy = False  # from a `response.create` to the end of its response
        self._ended = False
        self._last: KnownConversation | None = None
        self._wire: Wire  # set by `begin`, like the next
        self._outgoing: Outgoing

    @property
    def tenant(self) -> str | None:
        return self._tenant

    def begin(self, wire: Wire) -> None:
        self._wire = wire
        self._outgoing = Outgoing(wire)
        self._engine.gateway.on_news.add(self._leave_when_draining)
        self._leave_when_draining()

    def end(self) -> None:
        self._ended = True
        self._engine.gateway.on_news.discard(self._leave_when_draining)
        if self._running is not None:
            self._engine.gateway.cancel(self._running)

    async def receive(self, message: str | bytes) -> None:
        if not isinstance(message, str):
            self._wire.close(UNSUPPORTED_DATA)
        elif self._outgoing.waiting >= MAX_WAITING:
            self._wire.close(POLICY_VIOLATION)
        else:
            try:
                await self._create(message)
            except ApiError as error:
                self._outgoing.post(_error_event(restated(error)))

    async def _create(self, message: str) -> None:
        if self._busy:
            problem = "A response is being made on this socket; wait for its end, or open another socket."
            raise ApiError("conflict", problem)
        asks, body = origin(self._engine, self._tenant, self._headers), message_reader(message, self._tenant)
        async with reading(self._engine, body, _read, asks, absent="begin") as (engine, served, read):
            turn = await self._responses.prepare(engine, read, served, asks, self._last)
            if self._ended:  # while a large body was read
                return
            outbox = engine.gateway.submit(turn.request)
        self._busy, self._running = True, turn.request.id
        self._wire.nursery.start_soon(self._answer, turn, outbox, name="response")

    async def _answer(self, turn: PreparedResponse, outbox: EventSource) -> None:
        """Moves the response's events to the client, no faster than it reads."""
        try:
            said, ended = ResponseEvents(turn.growing), False
            while not ended:
                events = await outbox.drain()
                messages = [encode(one) for event in events for one in said.said(event)]
                ended = isinstance(events[-1], Finished | Failed)
                if ended:
                    await self._keep(turn)
                if (unsent := post_all(self._outgoing.post, messages)) is not None:
                    await unsent.wait()
        except Exception as error:  # our bug
            unexpected(error)
            self._wire.close(INTERNAL_ERROR)
        self._leave_when_draining()

    async def _keep(self, turn: PreparedResponse) -> None:
        """Before the client sees the end: it may go on at once."""
        stored = turn.stored and not self._ended and await self._responses.keep(turn)
        response = turn.growing.response
        items = [*turn.earlier, *turn.items, *said_items(encode(response))]
        fits = sum(len(encode(item)) for item in items) <= MAX_CONVERSATION_BYTES
        self._last = KnownConversation(response.id, items, stored) if fits else None
        self._busy, self._running = False, None

    def _leave_when_draining(self) -> None:
        if self._engine.gateway.refuses_new and not self._busy:
            self._wire.close(GOING_AWAY)


def _read(served: ServedModel, asks: Origin, event: str) -> Read:
    return read_response(served, asks, _body(event))


def _body(event: str) -> bytes:
    """The body of the same request over HTTP, streamed. Raises ApiError (400)."""
    fields: dict[str, Any] = decode(event, _FIELDS)  # Any: Raw
    kind = bytes(fields.pop("type", b"null"))
    if kind != b'"response.create"':
        raise ApiError("invalid_event", 'type: this server knows the event "response.create" alone.', param="type")
    for name, neutral in (("stream", b"true"), ("background", b"false"), ("generate", b"true"), ("stream_id", b"null")):
        if bytes(fields.pop(name, b"null")) not in (neutral, b"null"):
            message = f"{name}: leave it out on a WebSocket, which streams one response after another."
            raise ApiError("unsupported_parameter", message, param=name)
    return encode(fields)


def _error_event(error: ApiError) -> bytes:
    detail = error.detail()
    return encode(
        ResponseErrorEvent(
            sequence_number=0,
            status=error.status,
            code=detail.code,
            message=detail.message,
            param=detail.param,
            error=detail,
        )
    )


def open_socket(engine: "Server", responses: Responses, keys: Keys, handshake: Handshake) -> ResponseSocket:
    """Raises ApiError (401, 403) for a handshake that it refuses. The key comes with it; there is no `auth` frame."""
    tenant = keys.tenant_of_handshake(handshake)
    if tenant is None:
        raise ApiError("invalid_api_key", "An API key is needed: send the header `Authorization: Bearer KEY`.")
    return ResponseSocket(engine, responses, tenant, handshake.headers)
