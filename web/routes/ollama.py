"""Ollama's API: POST /api/chat, /api/generate and /api/show, GET /api/tags, /api/ps and /api/version."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.ollama_requests import OllamaShowBody
from ...protocol.ollama_responses import OllamaAnswer, OllamaModels, OllamaRunningModels, OllamaVersion
from ..asgi import Application, current_exchange
from ..exchange import Content, Exchange, json_content
from ..generation.asked import Asked, Origin, ServedModel
from ..generation.generation import answer, fallback_models, origin_of, refuse_explanation, served_model
from ..ollama.models import model_entry, model_page, running_entry
from ..ollama.ollama import ollama_error, read_chat, read_generate
from ..ollama.request import served_name
from ..openai.decode import decode

API_VERSION: Final = "0.13.0"  # programs ask for a version that has thoughts, tools and log probabilities
SHOW: Final = msgspec.json.Decoder(OllamaShowBody)

ReadOllama = Callable[[ServedModel, Origin, bytes], Asked | OllamaAnswer]


def register(app: Application) -> None:
    engine = app.engine
    app.errors.forms["/api/"] = ollama_error

    async def respond(read: ReadOllama, exchange: Exchange) -> Content:
        served, origin = served_model(engine), origin_of(engine, exchange)
        asked = await exchange.read_json(partial(read, served, origin))
        if isinstance(asked, Asked):
            return await answer(engine, app.openings, asked, exchange)
        refuse_explanation(exchange, "without messages or a prompt a request only loads the model")
        return json_content(msgspec.json.encode(asked))

    app.generation_route("/api/chat")(partial(respond, read_chat))
    app.generation_route("/api/generate")(partial(respond, read_generate))

    @app.get("/api/tags")
    async def tags() -> Response:
        served = served_model(engine)
        names = (served.model, *served.adapters)
        return _json(OllamaModels(models=[model_entry(name, engine.created, served.ready) for name in names]))

    @app.get("/api/ps")
    async def running() -> Response:
        entry = running_entry(engine.model_name, engine.created, served_model(engine).ready)
        return _json(OllamaRunningModels(models=[entry]))

    @app.post("/api/show")
    async def show() -> Response:
        served, exchange = served_model(engine), current_exchange()
        body = await exchange.read_json(partial(decode, decoder=SHOW))
        served_name(body.model or body.name, served, fallback_models(exchange.headers))
        template = (await engine.tokenizer_info()).chat_template
        return _json(model_page(engine.created, served.ready, template))

    @app.get("/api/version")
    async def ollama_version() -> Response:
        return _json(OllamaVersion(version=API_VERSION, triolet=version("triolet")))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), content_type="application/json")
