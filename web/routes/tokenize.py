"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from functools import partial

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.openai_requests import DetokenizeBody, TokenizeBody
from ...protocol.openai_responses import Detokenization, Tokenization
from ...protocol.requests import Prompt, TextPrompt
from ..asgi import Application, current_exchange
from ..generation.asked import ServedModel
from ..generation.generation import served_model
from ..openai.conversation import chat_prompt
from ..openai.decode import decode
from ..openai.request import check_token_ids, named_adapter

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.post("/tokenize")
    async def tokenize() -> Response:
        longest = served_model(engine).ready.context_length
        prompt = await current_exchange().read_json(partial(_prompt, served_model(engine)))
        token_ids = await engine.tokenize(prompt)
        result = Tokenization(count=len(token_ids), max_model_len=longest, tokens=list(token_ids))
        return Response(msgspec.json.encode(result), content_type="application/json")

    @app.post("/detokenize")
    async def detokenize() -> Response:
        token_ids = await current_exchange().read_json(partial(_token_ids, served_model(engine)))
        text = await engine.detokenize(token_ids)
        return Response(msgspec.json.encode(Detokenization(prompt=text)), content_type="application/json")

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        served_model(engine)  # refuses while it is loaded
        return Response(msgspec.json.encode(await engine.tokenizer_info()), content_type="application/json")


def _token_ids(served: ServedModel, data: bytes) -> tuple[int, ...]:
    body = decode(data, DETOKENIZE)
    named_adapter(body.model, served)
    check_token_ids(body.tokens, served.ready.vocab_size, "tokens")
    return tuple(body.tokens)


def _prompt(served: ServedModel, data: bytes) -> Prompt:
    body = decode(data, TOKENIZE)
    named_adapter(body.model, served)
    if body.messages is not None and body.prompt is not None:
        raise ApiError("invalid_value", "Send either prompt or messages.", param="prompt")
    if body.messages is not None:
        return chat_prompt(body)
    if body.prompt is None:
        raise ApiError("invalid_value", "Missing required parameter: prompt (or messages).", param="prompt")
    return TextPrompt(text=body.prompt, add_special_tokens=body.add_special_tokens is not False)
