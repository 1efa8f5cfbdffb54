"""One HTTP exchange: whatever way it ends, the generation that it started is cancelled.

quart-trio cancels a handler when its client leaves, but the client can leave after the handler returned its response
and before the response's body was asked for the first time: a `finally` in the body would not run then. So the request
remembers its generation, and the exchange, which is around both, ends it. After a normal end that does nothing.

A plain request to a route of `Application.generation_route` is checked and answered by the same functions, but past
Quart's routing, contexts and signals, which cost twice what the handler does (`GenerationConnection._answer`). An error
is answered by Quart itself, and so is every request that is odd in any way (`_is_plain`). So hooks and handlers look at
`current_exchange()`, never at Quart's `request`.
"""

from collections.abc import AsyncIterable, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart.routing import QuartMap
from quart.typing import ResponseTypes
from quart.utils import encode_headers
from quart.wrappers import Request, Response
from quart.wrappers.base import BaseRequestWebsocket
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Response as WerkzeugResponse

from .conversation import Opener
from .direct import LastPiece

if TYPE_CHECKING:
    from ..actors.engine import Engine


Handler = Callable[[], Awaitable[TrioResponse]]

_PLAIN_TYPE: Final = (b"content-type", b"application/json")
_ODD_HEADERS: Final = frozenset({b"content-encoding", b"expect", b"origin", b"transfer-encoding"})


class GenerationRequest(TrioRequest):
    """A request that may own a generation and has a name."""

    generation: str | None = None
    request_id: str = ""
    tenant: str = ""


class GenerationConnection(TrioASGIHTTPConnection):
    app: "Application"

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        handler = self.app.generation_handlers.get(self.scope["path"])
        if handler is None or not _is_plain(self.scope):
            await super().__call__(receive, send)
            return
        exchange = self._create_request_from_scope(send)
        assert isinstance(exchange, GenerationRequest)
        _exchange.set(exchange)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.handle_messages, nursery, exchange, receive)
                await self._send_response(send, await self._answer(exchange, handler))
                nursery.cancel_scope.cancel()
        finally:
            self._end(exchange)

    async def handle_request(  # type: ignore[override]  # quart-trio's own signature differs from quart's
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        assert isinstance(request, GenerationRequest)
        _exchange.set(request)
        try:
            await super().handle_request(nursery, request, send)
        finally:
            self._end(request)

    async def _answer(self, exchange: GenerationRequest, handler: Handler) -> Response:
        """What Quart does with a request whose route is known, and nothing else."""
        app = self.app
        try:
            for check in app.before_request_funcs[None]:
                refused = await app.ensure_async(check)()
                assert refused is None, "checks refuse by raising"
            response = await handler()
            for finish in reversed(app.after_request_funcs[None]):
                response = await app.ensure_async(finish)(response)
        except Exception as error:
            async with app.request_context(exchange):  # error handlers may look at it
                answer = await app.finalize_request(await app.handle_user_exception(error))
                assert isinstance(answer, Response)
                return answer
        return response

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        """As Quart does, but a body's last piece, where it is known, says that it is the last."""
        if isinstance(response, WerkzeugResponse):
            await super()._send_response(send, response)
            return
        headers = encode_headers(response.headers)
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": headers, "trailers": False}
        )
        more, whole = True, isinstance(response.response, DataBody)
        async with response.response as body:  # pyright: ignore  untyped in quart
            pieces: AsyncIterable[bytes] = body  # pyright: ignore
            async for piece in pieces:
                more = not (whole or isinstance(piece, LastPiece))
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        if more:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self, exchange: GenerationRequest) -> None:
        if exchange.generation is not None:
            self.app.engine.gateway.cancel(exchange.generation)


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

    def __init__(self, import_name: str, engine: "Engine") -> None:
        super().__init__(import_name, static_folder=None)
        self.engine = engine
        self.generation_handlers: dict[str, Handler] = {}
        self.sockets: dict[bytes, Opener] = {}  # of paths whose WebSockets are opened past Quart

    def generation_route(self, path: str) -> Callable[[Handler], Handler]:
        """A POST route whose plain requests are answered past Quart."""

        def register(handler: Handler) -> Handler:
            self.post(path)(handler)
            self.generation_handlers[path] = handler
            return handler

        return register


_exchange: ContextVar[GenerationRequest] = ContextVar("exchange")


def current_exchange() -> GenerationRequest:
    """The request that this task handles."""
    return _exchange.get()
