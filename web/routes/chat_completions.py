"""POST /v1/chat/completions."""

import msgspec

from ...protocol.openai_requests import ChatBody
from ..asgi import Application
from ..exchange import Content, Exchange
from ..openai.decode import decode
from ..openai.openai import origin_of, reply_to, respond, served_model
from ..openai.request import generate_from_chat

DECODER = msgspec.json.Decoder(ChatBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.generation_route("/v1/chat/completions")
    async def chat_completions(exchange: Exchange) -> Content:
        body = decode(await exchange.json_body(), DECODER)
        request = generate_from_chat(body, served_model(engine), origin_of(engine, exchange))
        return await respond(app, exchange, body, request, reply_to(body, request, "chat"))
