"""POST /v1/completions."""

import msgspec

from ...protocol.openai_requests import CompletionBody
from ..asgi import Application
from ..exchange import Content, Exchange
from ..openai.decode import decode
from ..openai.openai import origin_of, reply_to, respond, served_model
from ..openai.request import generate_from_completion

DECODER = msgspec.json.Decoder(CompletionBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.generation_route("/v1/completions")
    async def completions(exchange: Exchange) -> Content:
        body = decode(await exchange.json_body(), DECODER)
        request = generate_from_completion(body, served_model(engine), origin_of(engine, exchange))
        return await respond(app, exchange, body, request, reply_to(body, request, "completion"))
