"""POST /v1/completions."""

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ..protocol.openai_requests import CompletionBody
from .body import read_body
from .connection import Application, current_exchange
from .dialect import generate_from_completion
from .generation import origin_of, reply_to, respond, served

DECODER = msgspec.json.Decoder(CompletionBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.generation_route("/v1/completions")
    async def completions() -> Response:
        body = await read_body(DECODER)
        request = generate_from_completion(body, served(engine), origin_of(engine, current_exchange()))
        return await respond(engine, body, request, reply_to(body, request, "completion"))
