"""POST /tokenize and /detokenize, GET /tokenizer_info."""

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.openai_requests import DetokenizeBody, TokenizeBody
from ...protocol.openai_responses import Detokenization, Tokenization
from ...protocol.requests import Prompt, TextPrompt
from ..asgi import Application, current_exchange
from ..generation.asked import Origin, ServedModel
from ..generation.generation import origin_of
from ..generation.models import reading, using
from ..openai.conversation import chat_prompt
from ..openai.decode import decode
from ..openai.request import check_token_ids, named_adapter

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def register(app: Application) -> None:
    server = app.engine

    @app.post("/tokenize")
    async def tokenize() -> Response:
        exchange = current_exchange()
        async with reading(server, exchange.read_json, _prompt, origin_of(server, exchange)) as (
            engine,
            served,
            prompt,
        ):
            token_ids = await engine.tokenize(prompt)
        longest = served.ready.context_length
        result = Tokenization(count=len(token_ids), max_model_len=longest, tokens=list(token_ids))
        return Response(msgspec.json.encode(result), content_type="application/json")

    @app.post("/detokenize")
    async def detokenize() -> Response:
        exchange = current_exchange()
        async with reading(server, exchange.read_json, _token_ids, origin_of(server, exchange)) as (engine, _, ids):
            text = await engine.detokenize(ids)
        return Response(msgspec.json.encode(Detokenization(prompt=text)), content_type="application/json")

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        async with using(server) as (engine, _):  # refuses while it is loaded
            info = await engine.tokenizer_info()
        return Response(msgspec.json.encode(info), content_type="application/json")


def _token_ids(served: ServedModel, origin: Origin, data: bytes) -> tuple[int, ...]:
    body = decode(data, DETOKENIZE)
    named_adapter(body.model, served, origin.fallbacks)
    check_token_ids(body.tokens, served.ready.vocab_size, "tokens")
    return tuple(body.tokens)


def _prompt(served: ServedModel, origin: Origin, data: bytes) -> Prompt:
    body = decode(data, TOKENIZE)
    named_adapter(body.model, served, origin.fallbacks)
    if body.messages is not None and body.prompt is not None:
        raise ApiError("invalid_value", "Send either prompt or messages.", param="prompt")
    if body.messages is not None:
        return chat_prompt(body)
    if body.prompt is None:
        raise ApiError("invalid_value", "Missing required parameter: prompt (or messages).", param="prompt")
    return TextPrompt(text=body.prompt, add_special_tokens=body.add_special_tokens is not False)
