"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from functools import partial

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.anthropic_responses import TokenCount
from ..anthropic.anthropic import read_messages, read_prompt
from ..anthropic.errors import anthropic_error
from ..asgi import Application, current_exchange
from ..generation.generation import origin_of, respond
from ..generation.models import reading
from ..generation.resumable_answers import ResumableAnswers


def register(app: Application, resumable: ResumableAnswers) -> None:
    server = app.engine
    app.errors.forms["/v1/messages"] = anthropic_error
    app.generation_route("/v1/messages")(partial(respond, server, app.openings, read_messages, resumable=resumable))

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        exchange = current_exchange()
        async with reading(server, exchange.read_json, read_prompt, origin_of(server, exchange)) as (engine, _, prompt):
            count = TokenCount(input_tokens=len(await engine.tokenize(prompt)))
        return Response(msgspec.json.encode(count), content_type="application/json")
