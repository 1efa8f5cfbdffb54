"""One request and its answer as checks and handlers see them, whatever way the two take.

There are three ways: a plain request on HTTP/1.1 goes straight between its connection and its handler
(web/transport/plain_http1.py), a plain one on HTTP/2 past Quart, an odd one through it (both web/asgi.py). All call the
same checks and handlers and send the same fields.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, overload

from .transport.direct import WriteChunk

if TYPE_CHECKING:
    from ..actors.gateway.gateway import Gateway

Field = tuple[bytes, bytes]  # of a response's head: a name in lower case, a value

JSON: Final = b"application/json"
STREAM_FIELDS: Final[tuple[Field, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not collect chunks
    (b"content-type", b"text/event-stream; charset=utf-8"),
)


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


class Exchange(Handshake, Protocol):
    """A request, and what belongs to it until it is answered."""

    generation: str | None  # which it has started, and which ends with it
    request_id: str
    tenant: str

    @property
    def method(self) -> str: ...

    @property
    def endpoint(self) -> str | None:
        """The name of its route."""
        ...

    @property
    def write_chunk(self) -> WriteChunk | None:
        """Writes a piece of the streamed answer, where its connection can do that (web/transport/direct.py)."""
        ...

    async def json_body(self) -> bytes:
        """The whole body; raises where it is not JSON, too large (413) or too slow (408)."""
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
        gateway: "Gateway",
        error_content: Callable[[Exception], Content],
        *,
        max_body_bytes: int,
        body_timeout: float,
    ) -> None:
        self.handlers: dict[str, Handler] = {}  # by path
        self.checks: list[Check] = []
        self.max_body_bytes = max_body_bytes
        self.body_timeout = body_timeout  # seconds for a whole body to arrive
        self._gateway = gateway
        self._error_content = error_content

    async def answer(self, exchange: Exchange, handler: Handler) -> Content:
        try:
            for check in self.checks:
                check(exchange)
            return await handler(exchange)
        except Exception as error:
            return self._error_content(error)

    def end(self, exchange: Exchange) -> None:
        """The exchange is over. Whatever way it ended, so does its generation; after a normal end it has."""
        if exchange.generation is not None:
            self._gateway.cancel(exchange.generation)


def fields_of(content: Content, exchange: Exchange) -> tuple[Field, ...]:
    """The whole head of the answer but what its protocol adds."""
    return (*content.fields, (b"x-request-id", exchange.request_id.encode()))
