"""The interface between the application and its transport: one HTTP exchange, and one WebSocket.

A plain request on HTTP/1.1 goes straight between its connection and its handler (web/transport/plain_http1.py), all
others through hypercorn and Quart (web/asgi.py). Both call the same checks and handlers and send the same fields.

A WebSocket is a `Conversation`, without tasks of its own. The reader of the connection calls `begin` once, then
`receive` for each whole message, one after the other; whoever ends the socket calls `end`, perhaps more than once.
After `end` nothing is received.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar, overload

import trio

from .body_budget import budget_for

if TYPE_CHECKING:
    from ..actors.gateway.gateway import Gateway
    from ..actors.gateway.gateways import Gateways

T = TypeVar("T")
Field = tuple[bytes, bytes]  # of a response's head: a name in lower case, a value

JSON: Final = b"application/json"
STREAM_FIELDS: Final[tuple[Field, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not collect chunks
    (b"content-type", b"text/event-stream; charset=utf-8"),
)

FALLBACK_HEADER: Final = "X-Model-Fallback"  # of requests: names of models, in order, to use if theirs is not here
TIMEOUT_HEADER: Final = "X-Request-Timeout"  # of requests: seconds until the answer is ended
RESUME_HEADER: Final = "X-Triolet-Resume"  # of streams that can be resumed: the token (generation/resumable_answers.py)
EXPLAIN_HEADER: Final = "X-Triolet-Explain"  # of requests that want one (generation/explain.py), and of answers

ADDRESS: Final = "triolet.address"  # in the ASGI state of every connection
WRITE_CHUNK: Final = "triolet.write_chunk"  # in the ASGI state of a connection that speaks HTTP/1.1: its WriteChunk

# The result of a write outside any task. `part`: the kernel took the beginning; the rest must go before anything else.
# `nothing`: the caller must use the ordinary `send`, which waits.
Written = Literal["all", "part", "nothing"]
WriteChunk = Callable[[bytes], Written]  # of a chunk with its size and its end (RFC 9112, 7.1)


class LastPiece(bytes):
    """The last piece of a body: it leaves together with the body's end, in one write."""


class Headers(Protocol):
    """Of a request; names are compared without their case."""

    @overload
    def get(self, key: str) -> str | None: ...

    @overload
    def get(self, key: str, default: str) -> str: ...


class Handshake(Protocol):
    """The head of a request, or of a WebSocket's."""

    @property
    def headers(self) -> Headers: ...

    @property
    def args(self) -> Iterable[str]:
        """The names in its query."""
        ...

    @property
    def address(self) -> str | None:
        """Where it comes from, as transport/capacity.py counts addresses; None is a Unix socket."""
        ...


class Exchange(Handshake, Protocol):
    """A request, and what belongs to it until it is answered."""

    generation: str | None  # which it has started
    on_leave: Callable[[], object] | None  # what the exchange's end does about it; None: it ends too
    request_id: str
    tenant: str
    began: float  # on trio's clock
    status: int | None  # of the answer, once there is one

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def endpoint(self) -> str | None:
        """The name of its route."""
        ...

    @property
    def write_chunk(self) -> WriteChunk | None:
        """Writes a piece of the streamed answer outside any task, if the connection can do that."""
        ...

    async def read_json(self, decode: Callable[[bytes], T]) -> T:
        """What `decode` makes of the body; raises where it is not JSON, too large, too slow, or one too many."""
        ...


class Content(NamedTuple):
    """What a handler answers: a body, whole or as it comes, with the fields that describe it.

    Of a stream that has ended before it began, the body is its only piece (`LastPiece`).
    """

    body: bytes | AsyncGenerator[bytes, None]
    fields: tuple[Field, ...]
    status: int = 200


Check = Callable[[Exchange], None]
Handler = Callable[[Exchange], Awaitable[Content]]


def json_content(body: bytes, status: int = 200, extra: tuple[Field, ...] = ()) -> Content:
    return Content(body, ((b"content-type", JSON), (b"content-length", b"%d" % len(body)), *extra), status)


class GenerationRoutes:
    """The POST routes that start generations, and what is done for every request to them."""

    def __init__(
        self,
        gateway: "Gateway | Gateways",
        error_content: "Callable[[Exception, Exchange], Awaitable[Content]]",
        *,
        max_body_bytes: int,
        on_end: "Callable[[Exchange], None] | None" = None,
    ) -> None:
        self.handlers: dict[str, Handler] = {}  # by path
        self.checks: list[Check] = []
        self.max_body_bytes = max_body_bytes
        self.bodies = budget_for(max_body_bytes)
        self._on_end = on_end  # called when an exchange is over
        self._gateway = gateway
        self._error_content = error_content

    async def answer(self, exchange: Exchange, handler: Handler) -> Content:
        try:
            for check in self.checks:
                check(exchange)
            content = await handler(exchange)
        except Exception as error:
            content = await self._error_content(error, exchange)
        return content._replace(fields=(*content.fields, *self.limit_fields(exchange)))

    def limit_fields(self, exchange: Exchange) -> list[Field]:
        """What is left of its key's limits, in OpenAI's fields. An answer that has not ended has used no tokens yet."""
        fields = list[Field]()
        for kind, limit, left, reset in self._gateway.quotas.levels(exchange.tenant, trio.current_time()):
            fields += [
                (f"x-ratelimit-limit-{kind}".encode(), b"%d" % limit),
                (f"x-ratelimit-remaining-{kind}".encode(), b"%d" % max(left, 0)),
                (f"x-ratelimit-reset-{kind}".encode(), b"%.3fs" % reset),
            ]
        return fields

    def stall(self, exchange: Exchange) -> None:
        """Its client does not read. A generation that may outlive the exchange has other ends."""
        if exchange.generation is not None and exchange.on_leave is None:
            self._gateway.cancel(exchange.generation, "stalled")

    def end(self, exchange: Exchange) -> None:
        """The exchange is over. Whatever way it ended, so does its generation; after a normal end it has.

        Only a generation that may outlive its exchange is left to whoever follows it next.
        """
        if exchange.on_leave is not None:
            exchange.on_leave()
        elif exchange.generation is not None:
            self._gateway.cancel(exchange.generation)
        if self._on_end is not None:
            self._on_end(exchange)


def fields_of(content: Content, exchange: Exchange) -> tuple[Field, ...]:
    """The whole head of the answer but what its protocol adds."""
    name = exchange.request_id.encode()
    return (*content.fields, (b"x-request-id", name), (b"request-id", name))


class Wire(Protocol):
    """An open WebSocket, as its conversation uses it. After its end nothing is sent."""

    @property
    def nursery(self) -> trio.Nursery:
        """Ends with the socket."""
        ...

    def write_now(self, text: bytes) -> Written:
        """Write a message outside any task. After `part`, `finish` must be called soon."""
        ...

    async def finish(self) -> None:
        """Send the rest of a partial `write_now`."""
        ...

    async def send(self, text: bytes) -> None:
        """Send a message. Waits while the client does not read."""
        ...

    def close(self, code: int) -> None:
        """Close the socket with this code (RFC 6455, 7.4), outside any task."""
        ...


class Conversation(Protocol):
    @property
    def tenant(self) -> str | None:
        """Whose messages these are. None: they may not be large, as the key is owed or nothing large is of use."""
        ...

    def begin(self, wire: Wire) -> None: ...

    async def receive(self, message: str | bytes) -> None: ...

    def end(self) -> None: ...


Opener = Callable[[Handshake], Conversation]  # raises ApiError for a handshake that it refuses
