"""The general path of a request: hypercorn's events, Quart's routing, our handlers. HTTP/2, odd heads, other routes.

Whatever way an exchange ends, the generation that it started is cancelled, or left to its next follower if it has a
`disconnect_policy`. quart-trio cancels a handler when its client leaves, but the client can leave after the handler
returned its response and before the response's body was asked for the first time: a `finally` in the body would not run
then. So the request remembers its generation, and the exchange, which is around both, ends it. After a normal end that
does nothing.
"""

from collections import Counter
from collections.abc import AsyncIterable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart
from quart.routing import QuartMap
from quart.typing import ResponseTypes
from quart.utils import encode_headers
from quart.wrappers.base import BaseRequestWebsocket
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.exceptions import BadHost, HTTPException
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Response as WerkzeugResponse

from ..protocol.errors import ApiError
from .access import log_exchange, log_socket
from .arriving_body import ArrivingBody
from .arriving_upload import ArrivingUpload
from .errors import ErrorContents, error_content
from .exchange import (
    ADDRESS,
    WRITE_CHUNK,
    Check,
    Content,
    Conversation,
    Exchange,
    GenerationRoutes,
    Handler,
    Handshake,
    LastPiece,
    Opener,
    WriteChunk,
)
from .timers import Deadlines

if TYPE_CHECKING:
    from ..actors.observe.server import Server

T = TypeVar("T")

OPENING_SECONDS: Final = 0.1  # that a stream may wait for its first text, when it has started, to leave with it


class GenerationRequest(TrioRequest):
    """A request that may own a generation and has a name."""

    generation: str | None = None
    on_leave: Callable[[], object] | None = None
    request_id: str = ""
    tenant: str = ""
    began: float = 0.0
    status: int | None = None
    arriving: ArrivingBody
    upload: ArrivingUpload | None = None  # in the place of `arriving`

    @property
    def address(self) -> str | None:
        return _address_in(self.scope)

    @property
    def write_chunk(self) -> WriteChunk | None:
        return chunk_writer(self.scope)

    async def read_json(self, decode: Callable[[bytes], T]) -> T:
        """Raises ApiError: 415, 400, and those of `ArrivingBody.read`.

        Other content types are refused because browsers send them across origins without a preflight request.
        Compressed bodies are refused because a few kilobytes can expand to gigabytes.
        """
        if self.mimetype != "application/json" or self.mimetype_params.get("charset", "utf-8").lower() != "utf-8":
            raise ApiError("unsupported_media_type", "Send the body as `Content-Type: application/json` in UTF-8.")
        if self.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError("unsupported_encoding", "Compressed bodies are not accepted.")
        return await self.arriving.read(decode, self.tenant)


def _address_in(scope: Mapping[str, Any]) -> str | None:  # Any: ASGI scopes hold everything
    address: str | None = scope.get("state", {}).get(ADDRESS)
    return address


def chunk_writer(scope: Mapping[str, Any]) -> WriteChunk | None:  # Any: ASGI scopes hold everything
    """The writer of a request's connection; None if the server offers none, or the body is not chunked."""
    write: WriteChunk | None = scope.get("state", {}).get(WRITE_CHUNK)
    return write if scope.get("http_version") == "1.1" and scope.get("method") != "HEAD" else None


class GenerationConnection(TrioASGIHTTPConnection):
    app: "Application"

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        assert isinstance(app, Application)
        if app.prefix:
            scope["path"] = app.below_root(scope["path"])
        super().__init__(app, scope)

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """One task besides the one that waits for the client to leave: quart-trio's two take 2.5 KiB more per stream.

        Quart's timeout for responses is left out, as it would cut a stream after a minute: sends have their own.
        """
        request = self._create_request_from_scope(send)
        assert isinstance(request, GenerationRequest)
        request.began = trio.current_time()
        routes = self.app.generation
        if request.method == "POST" and request.path in self.app.uploads:
            request.upload = ArrivingUpload()
        else:
            request.arriving = ArrivingBody(routes.bodies, routes.max_body_bytes, request.content_length or 0)
        _exchange.set(request)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.handle_messages, nursery, request, receive)
                await self._send_response(send, await self.app.handle_request(request))
                nursery.cancel_scope.cancel()
        finally:
            (request.upload or request.arriving).release()
            routes.end(request)

    async def handle_messages(  # type: ignore[override]  # quart-trio's own signature differs from quart's
        self, nursery: trio.Nursery, request: "GenerationRequest", receive: ASGIReceiveCallable
    ) -> None:
        """In the place of Quart's: the client's body, until it leaves. Quart's own object for it stays empty."""
        while (message := await receive())["type"] != "http.disconnect":
            if message["type"] == "http.request":
                if request.upload is not None:
                    await request.upload.add(message["body"])
                else:
                    request.arriving.add(message["body"], request.tenant)
                if not message["more_body"]:
                    (request.upload or request.arriving).end()
        nursery.cancel_scope.cancel()

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        """As Quart does, but a body's last piece, where it is known, says that it is the last."""
        request = current_exchange()
        request.status = response.status_code
        if request.upload is not None:  # drop what still comes of it: a full queue of it would hold hypercorn's last
            request.upload.release()  # message to us, and with it the end of this answer
        if isinstance(response, WerkzeugResponse):
            await super()._send_response(send, response)
            return
        status, fields, body = response.status_code, encode_headers(response.headers), response.response
        await send({"type": "http.response.start", "status": status, "headers": fields, "trailers": False})
        del response, fields  # frees 1 KiB while a stream lasts
        more = True
        async with body as pieces:  # pyright: ignore  untyped in quart
            async for piece in _as_bytes(pieces):  # pyright: ignore  # untyped in quart
                more = not (isinstance(piece, LastPiece) or isinstance(body, DataBody))
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        if more:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _as_bytes(body: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    """Our bodies are never text, but Quart's types allow it."""
    return body


def quart_response(content: Content) -> TrioResponse:
    response = TrioResponse(content.body, content.status)
    response.headers.clear()
    response.headers.extend((name.decode(), value.decode("latin-1")) for name, value in content.fields)
    return response


def error_response(error: ApiError) -> TrioResponse:
    return quart_response(error_content(error))


class ExactMap(QuartMap):
    """Matches paths as they were sent: werkzeug strips leading slashes, so `//v1/models` would be `/v1/models`."""

    def bind_to_request(
        self, request: BaseRequestWebsocket, subdomain: str | None, server_name: str | None
    ) -> MapAdapter:
        try:
            adapter = super().bind_to_request(request, subdomain, server_name)
        except BadHost:  # a label of more than 63 characters; no route asks for the host, and origins.py judges it
            adapter = super().bind_to_request(request, "", "localhost")
        if request.scope["path"].startswith("//"):
            adapter.path_info = "%2F" + adapter.path_info  # no route begins like this
        return adapter


class Application(QuartTrio):
    """The Quart application and the engine that it fronts."""

    url_map_class = ExactMap
    asgi_http_class = GenerationConnection
    request_class = GenerationRequest

    def __init__(
        self, import_name: str, engine: "Server", http_errors: Counter[str], max_body_bytes: int, prefix: str = ""
    ) -> None:
        super().__init__(import_name, static_folder=None)
        self.engine = engine
        self.prefix = prefix  # a proxy may leave this in front of every path, or take it away
        self.sockets: dict[str, Opener] = {}  # by path
        self.socket_endpoints: set[str] = set()
        self.uploads: set[str] = set()  # paths whose POST is read piece by piece
        self.openings = Deadlines(OPENING_SECONDS)  # run by whoever serves the application
        self.errors = ErrorContents(http_errors)
        self.generation = GenerationRoutes(
            engine.gateway,
            self._answer_error,
            max_body_bytes=max_body_bytes,
            on_end=partial(log_exchange, engine.gateway) if engine.settings.access_log else None,
        )

        async def answer_error(error: Exception) -> TrioResponse:
            return quart_response(await self._answer_error(error, current_exchange()))

        for kind in (ApiError, HTTPException, Exception):
            self.register_error_handler(kind, answer_error)

    async def _answer_error(self, error: Exception, exchange: Exchange) -> Content:
        return await self.errors.answer(error, self.below_root(exchange.path), exchange.request_id)

    def below_root(self, path: str) -> str:
        return path.removeprefix(self.prefix) if path.startswith(f"{self.prefix}/") else path

    def check(self, check: Check) -> Check:
        """Register a check of every request before its handler; checks run in the order of registration."""

        @self.before_request
        async def by_quart() -> None:
            check(current_exchange())

        self.generation.checks.append(check)
        return check

    def generation_route(self, path: str) -> Callable[[Handler], Handler]:
        """A POST route whose plain requests on HTTP/1.1 bypass Quart."""

        def register(handler: Handler) -> Handler:
            async def by_quart() -> TrioResponse:
                return quart_response(await handler(current_exchange()))

            self.add_url_rule(path, path, by_quart, methods=["POST"])
            self.generation.handlers[path] = self.generation.handlers[self.prefix + path] = handler
            return handler

        return register

    def socket_route(self, path: str, opener: Opener) -> None:
        """A WebSocket route. A refused handshake is answered like a plain GET, with the reason."""

        def open_and_log(handshake: Handshake) -> Conversation:
            conversation = opener(handshake)
            log_socket(path)
            return conversation

        self.sockets[path] = open_and_log if self.engine.settings.access_log else opener
        self.sockets[self.prefix + path] = self.sockets[path]

        async def without_upgrade() -> TrioResponse:
            opener(current_exchange())
            response = error_response(ApiError("upgrade_required", f"Connect to {path} with a WebSocket."))
            response.headers["Upgrade"] = "websocket"
            return response

        endpoint = f"{path} as a WebSocket"  # other methods may have a route of this path
        self.socket_endpoints.add(endpoint)
        self.add_url_rule(path, endpoint, without_upgrade)


_exchange: ContextVar[GenerationRequest] = ContextVar("exchange")


def current_exchange() -> GenerationRequest:
    """The request that this task handles, if Quart dispatched it."""
    return _exchange.get()
