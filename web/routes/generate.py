"""POST /v1/chat/completions and POST /v1/completions."""

from functools import partial

from ..asgi import Application
from ..openai.dialect import CHAT, COMPLETIONS
from ..openai.openai import respond


def register(app: Application) -> None:
    app.generation_route("/v1/chat/completions")(partial(respond, app.engine, app.openings, CHAT))
    app.generation_route("/v1/completions")(partial(respond, app.engine, app.openings, COMPLETIONS))
