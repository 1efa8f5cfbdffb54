"""One HTTP exchange: whatever way it ends, the generation that it started is cancelled.

quart-trio cancels a handler when its client leaves, but the client can leave after the handler returned its response
and before the response's body was asked for the first time: a `finally` in the body would not run then. So the request
remembers its generation, and the exchange, which is around both, ends it. After a normal end that does nothing.
"""

from typing import TYPE_CHECKING

import trio
from hypercorn.typing import ASGISendCallable
from quart import request as current_request
from quart.routing import QuartMap
from quart.wrappers import Request
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.routing import MapAdapter

if TYPE_CHECKING:
    from ..actors.engine import Engine


class GenerationRequest(TrioRequest):
    """A request that may own a generation and has a name."""

    generation: str | None = None
    request_id: str = ""
    tenant: str = ""


class GenerationConnection(TrioASGIHTTPConnection):
    app: "Application"

    async def handle_request(  # type: ignore[override]  # quart-trio's own signature differs from quart's
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        try:
            await super().handle_request(nursery, request, send)
        finally:
            assert isinstance(request, GenerationRequest)
            if request.generation is not None:
                self.app.engine.gateway.cancel(request.generation)


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


def current_exchange() -> GenerationRequest:
    """The request that is being handled: the object itself, behind Quart's proxy."""
    exchange = current_request._get_current_object()  # type: ignore[attr-defined]  # the proxy is typed as its target
    assert isinstance(exchange, GenerationRequest)
    return exchange
