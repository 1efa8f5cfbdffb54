"""POST /v1/chat/completions."""

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ..protocol.openai_requests import ChatBody
from .body import read_body
from .connection import Application, current_exchange
from .dialect import generate_from_chat
from .generation import origin_of, reply_to, respond, served

DECODER = msgspec.json.Decoder(ChatBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.generation_route("/v1/chat/completions")
    async def chat_completions() -> Response:
        body = await read_body(DECODER)
        request = generate_from_chat(body, served(engine), origin_of(engine, current_exchange()))
        return await respond(engine, body, request, reply_to(body, request, "chat"))
