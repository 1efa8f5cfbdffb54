"""Questions of operators and clients about the server: alive, ready, version, metrics and model.

`/internal/ledger` shows whether every resource taken was given back; it is for tests and developers. `/internal/doctor`
is everything that `triolet doctor` asks of a server.
"""

import time
from collections.abc import Mapping
from importlib.metadata import version

import msgspec
import trio
from msgspec import structs
from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.metrics import ledger_of, render_metrics
from ...actors.observe.server import Models
from ...actors.observe.task_tree import task_tree
from ...protocol.adapters import Adapter
from ...protocol.anthropic_responses import AnthropicModels
from ...protocol.errors import model_not_found
from ...protocol.flight import DoctorReport
from ...protocol.openai_responses import ModelCard, ModelList
from ...protocol.reports import ServerReport
from ...protocol.settings import model_name
from ..anthropic.models import anthropic_model
from ..asgi import Application, current_exchange, error_response
from ..errors import unready_error
from ..generation.models import listed_models


def register(app: Application) -> None:
    engine = app.engine

    async def cards() -> list[ModelCard]:
        """The models, each with its LoRA adapters."""
        found: list[ModelCard] = []
        for model in await listed_models(engine):
            length = model.context_length
            own = ModelCard(id=model.name, created=model.created, root=model.model, max_model_len=length)
            found += [own, *(adapter_card(adapter, own) for adapter in model.adapters.values())]
        return found

    async def reports() -> Mapping[str, ServerReport]:
        """Of each of several models."""
        return await engine.served.reports() if isinstance(engine.served, Models) else {}

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
        whole = ledger_of(await engine.report(), [*(await reports()).values()])
        return Response(msgspec.json.encode(whole), content_type="application/json")

    @app.get("/internal/doctor")
    async def doctor() -> Response:
        whole, each, root = await engine.report(), await reports(), trio.lowlevel.current_root_task()
        found = DoctorReport(
            version=version("triolet"),
            wall=time.time(),
            health=await engine.health(),
            about=await engine.about(),
            ledger=ledger_of(whole, [*each.values()]),
            reports=dict(each) or {model_name(engine.settings): whole},
            recordings=dict(await engine.recordings()),
            tasks=task_tree(root) if root else [],
        )
        return Response(msgspec.json.encode(found), content_type="application/json")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics of the whole server in the Prometheus text format."""
        text = render_metrics(await engine.report(), engine.settings, await reports())
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    def asks_anthropic() -> bool:
        """The form is Anthropic's for its clients, which all send this header."""
        return bool(current_exchange().headers.get("anthropic-version"))

    @app.get("/v1/models")
    async def models() -> Response:
        if asks_anthropic():
            listed = [anthropic_model(card) for card in await cards()]
            ends = (listed[0].id, listed[-1].id) if listed else (None, None)
            page = AnthropicModels(data=listed, first_id=ends[0], last_id=ends[1])
            return Response(msgspec.json.encode(page), content_type="application/json")
        return Response(msgspec.json.encode(ModelList(data=await cards())), content_type="application/json")

    @app.get("/v1/models/<path:model>")
    async def model(model: str) -> Response:
        found = await cards()
        names = {name: card for card in found for name in (card.id, f"{card.parent}:{card.id}")}
        card = names.get(model)
        if card is None:
            raise model_not_found(model, [card.id for card in found])
        entry = anthropic_model(card) if asks_anthropic() else card
        return Response(msgspec.json.encode(entry), content_type="application/json")


def adapter_card(adapter: Adapter, model: ModelCard) -> ModelCard:
    created = adapter.load // 1_000_000_000 or model.created
    return structs.replace(model, id=adapter.name, created=created, parent=model.id)
