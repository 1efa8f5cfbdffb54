"""Questions of operators and clients about the server: alive, ready, version, metrics and model.

`/internal/ledger` shows whether every resource taken was given back; it is for tests and developers.
"""

from importlib.metadata import version

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.metrics import ledger_of, render_metrics
from ...protocol.anthropic_responses import AnthropicModel, AnthropicModels
from ...protocol.openai_responses import ModelCard, ModelList
from ..anthropic.models import anthropic_model
from ..asgi import Application, current_exchange, error_response
from ..errors import unready_error
from ..generation.generation import served_model
from ..openai.request import check_model


def register(app: Application) -> None:
    engine = app.engine

    def card() -> ModelCard:
        return ModelCard(
            id=engine.model_name, created=engine.created, max_model_len=served_model(engine).ready.context_length
        )

    @app.get("/health/live")
    async def live() -> Response:
        """The process answers. This shows nothing about the engine and needs no key."""
        return Response(b'{"status":"live"}', content_type="application/json")

    @app.get("/health")
    @app.get("/health/ready")
    async def ready() -> Response:
        health = await engine.health()
        if health.ready:
            return Response(msgspec.json.encode(health), content_type="application/json")
        return error_response(unready_error(health))

    @app.get("/version")
    async def server_version() -> Response:
        ready = engine.ready
        body = {"version": version("triolet"), "components": ready.versions if ready else {}}
        return Response(msgspec.json.encode(body), content_type="application/json")

    @app.get("/internal/ledger")
    async def ledger() -> Response:
        return Response(msgspec.json.encode(ledger_of(await engine.report())), content_type="application/json")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics of the whole server in the Prometheus text format."""
        text = render_metrics(await engine.report(), engine.settings)
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    def entry() -> ModelCard | AnthropicModel:
        """The form is Anthropic's for its clients, which all send this header."""
        return anthropic_model(card()) if current_exchange().headers.get("anthropic-version") else card()

    @app.get("/v1/models")
    async def models() -> Response:
        model = entry()
        if isinstance(model, AnthropicModel):
            page = AnthropicModels(data=[model], first_id=model.id, last_id=model.id)
            return Response(msgspec.json.encode(page), content_type="application/json")
        return Response(msgspec.json.encode(ModelList(data=[model])), content_type="application/json")

    @app.get("/v1/models/<path:model>")
    async def model(model: str) -> Response:
        check_model(model, engine.model_name)
        return Response(msgspec.json.encode(entry()), content_type="application/json")
