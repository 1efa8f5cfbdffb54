"""Ollama's API: POST /api/chat, /api/generate, /api/embed and /api/show, GET /api/tags, /api/ps and /api/version."""

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
from ..generation.generation import answer, origin_of, refuse_explanation
from ..generation.models import either_name, listed_models, reading, unloaded_model, using
from ..ollama.embed import read_embed
from ..ollama.models import model_entry, model_page, running_entry
from ..ollama.ollama import ollama_error, read_chat, read_generate
from ..ollama.request import served_name
from ..openai.decode import decode

API_VERSION: Final = "0.13.0"  # programs ask for a version that has thoughts, tools and log probabilities
SHOW: Final = msgspec.json.Decoder(OllamaShowBody)

ReadOllama = Callable[[ServedModel, Origin, bytes], Asked | OllamaAnswer]


def register(app: Application) -> None:
    server = app.engine
    app.errors.forms["/api/"] = ollama_error

    async def respond(read: ReadOllama, exchange: Exchange) -> Content:
        async with reading(server, exchange.read_json, read, origin_of(server, exchange)) as (engine, _, asked):
            if isinstance(asked, Asked):
                return await answer(engine, app.openings, asked, exchange)
        refuse_explanation(exchange, "without messages or a prompt a request only loads the model")
        return json_content(msgspec.json.encode(asked))

    app.generation_route("/api/chat")(partial(respond, read_chat))
    app.generation_route("/api/generate")(partial(respond, read_generate))
    app.generation_route("/api/embed")(partial(respond, read_embed))

    @app.get("/api/tags")
    async def tags() -> Response:
        entries = [
            model_entry(name, model.created, model.ready)
            for model in await listed_models(server)
            for name in (model.name, *model.adapters)
        ]
        return _json(OllamaModels(models=entries))

    @app.get("/api/ps")
    async def running() -> Response:
        listed = [model for model in await listed_models(server) if model.loaded]
        entries = [running_entry(model.name, model.created, model.ready) for model in listed if model.ready]
        return _json(OllamaRunningModels(models=entries))

    @app.post("/api/show")
    async def show() -> Response:
        exchange = current_exchange()
        origin = origin_of(server, exchange)
        body = await exchange.read_json(lambda data: decode(data, SHOW))
        name = either_name(body.model, body.name)
        if (unloaded := await unloaded_model(server, name, origin)) is not None:
            return _json(model_page(unloaded.created, unloaded.ready, None))
        async with using(server, name, origin) as (engine, served):
            served_name(name, served, origin.fallbacks)
            template = (await engine.tokenizer_info()).chat_template
            return _json(model_page(engine.created, served.ready, template))

    @app.get("/api/version")
    async def ollama_version() -> Response:
        return _json(OllamaVersion(version=API_VERSION, triolet=version("triolet")))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), content_type="application/json")
