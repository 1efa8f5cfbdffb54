"""GET /v1/models and /v1/models/{id}: the one model that is served."""

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.openai_responses import ModelCard, ModelList
from ..asgi import Application
from ..openai.openai import served_model
from ..openai.request import check_model


def register(app: Application) -> None:
    engine = app.engine

    def card() -> ModelCard:
        return ModelCard(
            id=engine.model_name, created=engine.created, max_model_len=served_model(engine).ready.context_length
        )

    @app.get("/v1/models")
    async def models() -> Response:
        return Response(msgspec.json.encode(ModelList(data=[card()])), content_type="application/json")

    @app.get("/v1/models/<path:model>")
    async def model(model: str) -> Response:
        check_model(model, engine.model_name)
        return Response(msgspec.json.encode(card()), content_type="application/json")
