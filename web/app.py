"""The web application: routes, limits and the order of a request's checks. Of the engine it knows only `Server`.

A request is named, checked for its origin and its key, matched to a route, read and validated, and only then handed to
the engine. Serve the application with web/transport/transport.py, which guards what Quart and hypercorn do not.
"""

import re
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from quart_trio.wrappers import TrioResponse as Response

from ..actors.gateway.gateway import process_name
from . import auth
from .asgi import Application, current_exchange
from .exchange import Exchange
from .openai.dialect import CHAT, COMPLETIONS
from .openai.openai import respond
from .routes import dashboard, explain, openapi, operators, page_files, stream, tokenize

if TYPE_CHECKING:
    from ..actors.observe.observe import Server

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def create_app(engine: "Server") -> Application:
    """The application in front of `engine`."""
    app = Application(
        __name__, engine, engine.gateway.accounts.http_errors, max_body_bytes=engine.settings.limits.max_body_bytes
    )
    app.url_map.merge_slashes = False  # odd spellings of a path are not redirected to the right one
    app.url_map.redirect_defaults = False
    _name_requests(app)
    keys = auth.Keys(engine.settings.api_keys)
    auth.register(app, keys)
    app.generation_route("/v1/chat/completions")(partial(respond, engine, app.openings, CHAT))
    app.generation_route("/v1/completions")(partial(respond, engine, app.openings, COMPLETIONS))
    stream.register(app, keys)
    dashboard.register(app, keys)
    for part in (explain, tokenize, operators, openapi, page_files):
        part.register(app)
    return app


def _name_requests(app: Application) -> None:
    """`X-Request-Id`, the client's or ours, in every response, including errors."""
    process, numbers = process_name(), count(1)

    @app.check
    def name(exchange: Exchange) -> None:
        given = exchange.headers.get("X-Request-Id", "")
        exchange.request_id = given if REQUEST_ID.fullmatch(given) else f"req-{process}-{next(numbers):x}"

    @app.after_request
    async def echo(response: Response) -> Response:
        response.headers["X-Request-Id"] = current_exchange().request_id
        return response
