"""The web application: routes, limits and the order of a request's checks. Of the engine it knows only `Server`.

A request is named, checked for its origin and its key, matched to a route, read and validated, and only then handed to
the engine. Serve the application with web/transport/transport.py, which guards what Quart and hypercorn do not.
"""

import re
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from quart_trio.wrappers import TrioResponse as Response

from ..actors.batch.folder import DataFolder
from ..actors.database import data_folder
from ..actors.gateway.gateway import process_name
from ..protocol.settings import digests
from . import auth
from .asgi import Application, current_exchange
from .exchange import Exchange
from .generation.generation import respond
from .generation.resumable_answers import ResumableAnswers
from .openai.dialect import CHAT, COMPLETIONS
from .openai.openai import read
from .origins import Origins, allow_scripts
from .routes import (
    adapters,
    batches,
    dashboard,
    endpoint_list,
    explain,
    files,
    messages,
    models,
    ollama,
    openapi,
    operators,
    page_files,
    pooling,
    responses,
    resume,
    stream,
    tokenize,
    usage,
)

if TYPE_CHECKING:
    from ..actors.observe.server import Server

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def create_app(engine: "Server") -> Application:
    """The application in front of `engine`."""
    app = Application(
        __name__,
        engine,
        engine.gateway.accounts.http_errors,
        max_body_bytes=engine.settings.limits.max_body_bytes,
        prefix=engine.settings.root_path,
    )
    app.url_map.merge_slashes = False  # odd spellings of a path are not redirected to the right one
    app.url_map.redirect_defaults = False
    _name_requests(app)
    settings = engine.settings
    # A page's name can be made to point here, but no page reaches a Unix socket.
    own_name = None if settings.key_digests or settings.uds else settings.host
    origins = Origins(settings.allow_origins, own_name)
    allow_scripts(app, origins)
    keys = auth.Keys(settings.key_digests, origins)
    asked = digests(settings.operator_keys)
    operator_keys = auth.Keys(asked, origins, "operator key") if asked else keys
    auth.register(app, keys, operator_keys, origins)
    resumable = ResumableAnswers(engine, lambda: app.nursery)
    for path, body in (("/v1/chat/completions", partial(read, CHAT)), ("/v1/completions", partial(read, COMPLETIONS))):
        app.generation_route(path)(partial(respond, engine, app.openings, body, resumable=resumable))
    messages.register(app, resumable)
    resume.register(app, resumable)
    stream.register(app, keys, resumable)
    responses.register(app, keys)
    dashboard.register(app, operator_keys)
    folder = DataFolder(data_folder(settings.data))
    files.register(app, folder)
    batches.register(app, folder)
    usage.register(app, operator_keys if settings.operator_keys else None)
    pages = (openapi, endpoint_list, page_files)
    for part in (adapters, models, ollama, explain, tokenize, pooling, operators, *pages):
        part.register(app)
    return app


def _name_requests(app: Application) -> None:
    """`X-Request-Id`, the client's or ours, in every response, including errors; `Request-Id` is Anthropic's name.

    With what is left of the key's limits, which plain requests get elsewhere.
    """
    process, numbers = process_name(), count(1)

    @app.check
    def name(exchange: Exchange) -> None:
        given = exchange.headers.get("X-Request-Id", "")
        exchange.request_id = given if REQUEST_ID.fullmatch(given) else f"req-{process}-{next(numbers):x}"

    @app.after_request
    async def echo(response: Response) -> Response:
        exchange = current_exchange()
        response.headers["X-Request-Id"] = response.headers["Request-Id"] = exchange.request_id
        response.headers.extend((key.decode(), value.decode()) for key, value in app.generation.limit_fields(exchange))
        return response
