"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from functools import partial

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.openai_requests import DetokenizeBody, TokenizeBody
from ...protocol.openai_responses import Detokenization, Tokenization
from ...protocol.requests import Prompt, TextPrompt
from ..asgi import Application, current_exchange
from ..generation.generation import served_model
from ..openai.conversation import chat_prompt
from ..openai.decode import decode
from ..openai.request import check_model, check_token_ids

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.post("/tokenize")
    async def tokenize() -> Response:
        longest = served_model(engine).ready.context_length
        prompt = await current_exchange().read_json(partial(_prompt, engine.model_name))
        token_ids = await engine.tokenize(prompt)
        result = Tokenization(count=len(token_ids), max_model_len=longest, tokens=list(token_ids))
        return Response(msgspec.json.encode(result), content_type="application/json")

    @app.post("/detokenize")
    async def detokenize() -> Response:
        vocab_size = served_model(engine).ready.vocab_size
        token_ids = await current_exchange().read_json(partial(_token_ids, engine.model_name, vocab_size))
        text = await engine.detokenize(token_ids)
        return Response(msgspec.json.encode(Detokenization(prompt=text)), content_type="application/json")

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        served_model(engine)  # refuses while it is loaded
        return Response(msgspec.json.encode(await engine.tokenizer_info()), content_type="application/json")


def _token_ids(model_name: str, vocab_size: int, data: bytes) -> tuple[int, ...]:
    body = decode(data, DETOKENIZE)
    check_model(body.model, model_name)
    check_token_ids(body.tokens, vocab_size, "tokens")
    return tuple(body.tokens)


def _prompt(model_name: str, data: bytes) -> Prompt:
    body = decode(data, TOKENIZE)
    check_model(body.model, model_name)
    if body.messages is not None and body.prompt is not None:
        raise ApiError("invalid_value", "Send either prompt or messages.", param="prompt")
    if body.messages is not None:
        return chat_prompt(body)
    if body.prompt is None:
        raise ApiError("invalid_value", "Missing required parameter: prompt (or messages).", param="prompt")
    return TextPrompt(text=body.prompt, add_special_tokens=body.add_special_tokens is not False)
