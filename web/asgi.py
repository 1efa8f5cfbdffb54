"""One HTTP exchange by way of ASGI: whatever way it ends, the generation that it started is cancelled.

quart-trio cancels a handler when its client leaves, but the client can leave after the handler returned its response
and before the response's body was asked for the first time: a `finally` in the body would not run then. So the request
remembers its generation, and the exchange, which is around both, ends it. After a normal end that does nothing.

A plain request to a route of `Application.generation_route` (`_is_plain`) is checked and answered by the same
functions, but past Quart's routing, contexts and signals, which cost twice what the handler does. What comes here of
them came by HTTP/2; those of HTTP/1.1 seldom come so far (web/transport/plain_http1.py).
"""

from collections import Counter
from collections.abc import AsyncIterable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart.routing import QuartMap
from quart.typing import ResponseTypes
from quart.utils import encode_headers
from quart.wrappers import Request
from quart.wrappers.base import BaseRequestWebsocket
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Response as WerkzeugResponse

from ..protocol.errors import ApiError
from .conversation import Opener
from .errors import ErrorContents, error_content
from .exchange import Check, Content, GenerationRoutes, Handler, fields_of
from .transport.deadlines import Deadlines
from .transport.direct import LastPiece, WriteChunk, chunk_writer

if TYPE_CHECKING:
    from ..actors.observe.observe import Server

BODY_TIMEOUT: Final = 30.0  # seconds for a whole body to arrive
OPENING_SECONDS: Final = 0.1  # that a stream may wait for its first text, when it has started, to leave with it
_PLAIN_TYPE: Final = (b"content-type", b"application/json")
_ODD_HEADERS: Final = frozenset({b"content-encoding", b"expect", b"origin", b"transfer-encoding"})


class GenerationRequest(TrioRequest):
    """A request that may own a generation and has a name."""

    generation: str | None = None
    request_id: str = ""
    tenant: str = ""

    @property
    def write_chunk(self) -> WriteChunk | None:
        return chunk_writer(self.scope)

    async def json_body(self) -> bytes:
        """Raises ApiError (415, 400); Quart raises for bodies that are too large (413) or too slow (408).

        Other content types are refused because a browser sends them across origins without asking first, and compressed
        bodies because a few kilobytes of them can be gigabytes.
        """
        if self.mimetype != "application/json" or self.mimetype_params.get("charset", "utf-8").lower() != "utf-8":
            raise ApiError("unsupported_media_type", "Send the body as `Content-Type: application/json` in UTF-8.")
        if self.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError("unsupported_encoding", "Compressed bodies are not accepted.")
        return await self.get_data(cache=False, as_text=False, parse_form_data=False)


class GenerationConnection(TrioASGIHTTPConnection):
    app: "Application"

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        routes = self.app.generation
        handler = routes.handlers.get(self.scope["path"])
        if handler is None or not _is_plain(self.scope):
            await super().__call__(receive, send)
            return
        exchange = self._create_request_from_scope(send)
        assert isinstance(exchange, GenerationRequest)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.handle_messages, nursery, exchange, receive)
                await self._send_content(send, await routes.answer(exchange, handler), exchange)
                nursery.cancel_scope.cancel()
        finally:
            routes.end(exchange)

    async def handle_request(  # type: ignore[override]  # quart-trio's own signature differs from quart's
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        assert isinstance(request, GenerationRequest)
        _exchange.set(request)
        try:
            await super().handle_request(nursery, request, send)
        finally:
            self.app.generation.end(request)

    async def _send_content(self, send: ASGISendCallable, content: Content, exchange: GenerationRequest) -> None:
        fields = fields_of(content, exchange)
        await send({"type": "http.response.start", "status": content.status, "headers": fields, "trailers": False})
        if isinstance(content.body, bytes):
            await send({"type": "http.response.body", "body": content.body, "more_body": False})
            return
        async with aclosing(content.body) as body:
            await self._send_pieces(send, body)

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        """As Quart does, but a body's last piece, where it is known, says that it is the last."""
        if isinstance(response, WerkzeugResponse):
            await super()._send_response(send, response)
            return
        headers = encode_headers(response.headers)
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": headers, "trailers": False}
        )
        async with response.response as body:  # pyright: ignore  untyped in quart
            pieces: AsyncIterable[bytes] = body  # pyright: ignore
            await self._send_pieces(send, pieces, whole=isinstance(response.response, DataBody))

    async def _send_pieces(self, send: ASGISendCallable, pieces: AsyncIterable[bytes], *, whole: bool = False) -> None:
        more = True
        async for piece in pieces:
            more = not (whole or isinstance(piece, LastPiece))
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        if more:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_plain(scope: HTTPScope) -> bool:
    """A POST of JSON by a program, no browser, with nothing else to look at."""
    if scope["method"] != "POST" or scope["query_string"] or scope["http_version"] < "1.1":
        return False
    json = False
    for header in scope["headers"]:
        if header[0] in _ODD_HEADERS:
            return False
        if header[0] == b"content-type":
            json = header == _PLAIN_TYPE
    return json


def quart_response(content: Content) -> TrioResponse:
    response = TrioResponse(content.body, content.status)
    response.headers.clear()
    response.headers.extend((name.decode(), value.decode("latin-1")) for name, value in content.fields)
    response.timeout = None
    return response


def error_response(error: ApiError) -> TrioResponse:
    return quart_response(error_content(error))


class ExactMap(QuartMap):
    """Matches paths as they were sent: werkzeug strips leading slashes, and `//v1/models` would be `/v1/models`."""

    def bind_to_request(
        self, request: BaseRequestWebsocket, subdomain: str | None, server_name: str | None
    ) -> MapAdapter:
        adapter = super().bind_to_request(request, subdomain, server_name)
        if request.scope["path"].startswith("//"):
            adapter.path_info = "%2F" + adapter.path_info  # no route begins so
        return adapter


class Application(QuartTrio):
    """The Quart application and the engine that it fronts."""

    url_map_class = ExactMap
    asgi_http_class = GenerationConnection
    request_class = GenerationRequest

    def __init__(self, import_name: str, engine: "Server", http_errors: Counter[str], max_body_bytes: int) -> None:
        super().__init__(import_name, static_folder=None)
        self.engine = engine
        self.sockets: dict[bytes, Opener] = {}  # of paths whose WebSockets are opened past Quart
        self.config["RESPONSE_TIMEOUT"] = None  # Quart would cut a stream after a minute; sends have their own deadline
        self.config["BODY_TIMEOUT"] = BODY_TIMEOUT
        self.config["MAX_CONTENT_LENGTH"] = max_body_bytes
        self.openings = Deadlines(OPENING_SECONDS)  # run by whoever serves the application
        contents = ErrorContents(http_errors)
        self.generation = GenerationRoutes(
            engine.gateway, contents, max_body_bytes=max_body_bytes, body_timeout=BODY_TIMEOUT
        )

        async def answer_error(error: Exception) -> TrioResponse:
            return quart_response(contents(error))

        for kind in (ApiError, HTTPException, Exception):
            self.register_error_handler(kind, answer_error)

    def check(self, check: Check) -> Check:
        """Something that is looked at in every request, before its handler; in the order of registration."""

        @self.before_request
        async def by_quart() -> None:
            check(current_exchange())

        self.generation.checks.append(check)
        return check

    def generation_route(self, path: str) -> Callable[[Handler], Handler]:
        """A POST route whose plain requests are answered past Quart."""

        def register(handler: Handler) -> Handler:
            async def by_quart() -> TrioResponse:
                return quart_response(await handler(current_exchange()))

            self.add_url_rule(path, path, by_quart, methods=["POST"])
            self.generation.handlers[path] = handler
            return handler

        return register


_exchange: ContextVar[GenerationRequest] = ContextVar("exchange")


def current_exchange() -> GenerationRequest:
    """The request that this task handles, where Quart has dispatched it."""
    return _exchange.get()
