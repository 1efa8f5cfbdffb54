"""POST /tokenize and /detokenize."""

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.errors import ApiError
from ...protocol.openai_requests import DetokenizeBody, TokenizeBody
from ...protocol.openai_responses import Detokenization, Tokenization
from ...protocol.requests import Prompt, TextPrompt
from ..asgi import Application, current_exchange
from ..openai.decode import decode
from ..openai.openai import served_model
from ..openai.request import chat_prompt, check_model, check_token_ids

TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def register(app: Application) -> None:
    engine = app.engine

    @app.post("/tokenize")
    async def tokenize() -> Response:
        body = decode(await current_exchange().json_body(), TOKENIZE)
        check_model(body.model, engine.model_name)
        token_ids = await engine.tokenize(_prompt(body))
        result = Tokenization(
            count=len(token_ids), max_model_len=served_model(engine).ready.context_length, tokens=list(token_ids)
        )
        return Response(msgspec.json.encode(result), content_type="application/json")

    @app.post("/detokenize")
    async def detokenize() -> Response:
        body = decode(await current_exchange().json_body(), DETOKENIZE)
        check_model(body.model, engine.model_name)
        check_token_ids(body.tokens, served_model(engine).ready.vocab_size, "tokens")
        text = await engine.detokenize(tuple(body.tokens))
        return Response(msgspec.json.encode(Detokenization(prompt=text)), content_type="application/json")


def _prompt(body: TokenizeBody) -> Prompt:
    if body.messages is not None and body.prompt is not None:
        raise ApiError("invalid_value", "Send either prompt or messages.", param="prompt")
    if body.messages is not None:
        return chat_prompt(body.messages, add_generation_prompt=body.add_generation_prompt is not False)
    if body.prompt is None:
        raise ApiError("invalid_value", "Missing required parameter: prompt (or messages).", param="prompt")
    return TextPrompt(text=body.prompt)
