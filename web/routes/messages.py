"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from functools import partial

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.anthropic_responses import TokenCount
from ..anthropic.anthropic import read_messages, read_prompt
from ..anthropic.errors import anthropic_error
from ..asgi import Application, current_exchange
from ..generation.generation import fallback_models, respond, served_model


def register(app: Application) -> None:
    engine = app.engine
    app.errors.forms["/v1/messages"] = anthropic_error
    app.generation_route("/v1/messages")(partial(respond, engine, app.openings, read_messages))

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        exchange, served = current_exchange(), served_model(engine)
        fallbacks = fallback_models(exchange.headers)
        prompt = await exchange.read_json(partial(read_prompt, served, fallbacks=fallbacks))
        count = TokenCount(input_tokens=len(await engine.tokenize(prompt)))
        return Response(msgspec.json.encode(count), content_type="application/json")
