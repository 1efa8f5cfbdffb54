"""GET /models, POST /models/load and /models/unload, as llama.cpp's router has them, and POST /models/alias.

They are there if the server has several models. What changes them concerns all clients, so an operator's key opens it,
where there is one.
"""

from functools import partial
from typing import Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.server import Models
from ...protocol.errors import ApiError
from ...protocol.served_models import AliasBody, ModelBody, ModelDone, ServedModelList
from ..asgi import Application, current_exchange
from ..openai.decode import decode

_MODEL: Final = msgspec.json.Decoder(ModelBody)
_ALIAS: Final = msgspec.json.Decoder(AliasBody)


def register(app: Application) -> None:
    def models() -> Models:
        if not isinstance(app.engine.served, Models):
            message = (
                "This server has one model, which /v1/models names; "
                "to load and unload several, start it with NAME=MODEL for each."
            )
            raise ApiError("unsupported_endpoint", message)
        return app.engine.served

    async def body_model() -> str:
        return (await current_exchange().read_json(partial(decode, decoder=_MODEL))).model

    @app.get("/models")
    async def list_states() -> Response:
        return _json(ServedModelList(data=models().entries()))

    @app.post("/models/load")
    async def load_model() -> Response:
        """The answer comes when it is loaded. It is loaded also if the client leaves before."""
        return _json(ModelDone(model=await models().load(await body_model())))

    @app.post("/models/unload")
    async def unload_model() -> Response:
        """The answer comes when its running requests have ended and its memory is free."""
        return _json(ModelDone(model=await models().unload(await body_model())))

    @app.post("/models/alias")
    async def alias_model() -> Response:
        known = models()
        body = await current_exchange().read_json(partial(decode, decoder=_ALIAS))
        return _json(ModelDone(model=known.set_alias(body.alias, body.model)))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), content_type="application/json")
