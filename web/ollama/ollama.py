"""Reads the body of an Ollama chat or generation: what the engine is asked for, and how the answer is written."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from ...protocol.errors import ApiError
from ...protocol.ollama_requests import OllamaChatBody, OllamaGenerateBody
from ...protocol.ollama_responses import OllamaAnswer, OllamaError
from ...protocol.requests import Generate
from ..generation.asked import Asked, Origin, ServedModel
from ..openai.decode import decode
from .answer import OllamaReply, WholeOllamaAnswer
from .lines import OllamaLines
from .request import generate_from_ollama, generate_from_ollama_chat, served_name

_CHAT: Final = msgspec.json.Decoder(OllamaChatBody)
_GENERATE: Final = msgspec.json.Decoder(OllamaGenerateBody)


def read_chat(served: ServedModel, origin: Origin, data: bytes) -> Asked | OllamaAnswer:
    """Raises ApiError (400, 404)."""
    body = decode(data, _CHAT)
    reply = OllamaReply(True, served_name(body.model, served, origin.fallbacks), _now())
    if not body.messages:
        return _loaded(reply)
    return _asked(generate_from_ollama_chat(body, served, origin), reply, body.stream)


def read_generate(served: ServedModel, origin: Origin, data: bytes) -> Asked | OllamaAnswer:
    """Raises ApiError (400, 404)."""
    body = decode(data, _GENERATE)
    reply = OllamaReply(False, served_name(body.model, served, origin.fallbacks), _now())
    if not body.prompt:
        return _loaded(reply)
    return _asked(generate_from_ollama(body, served, origin), reply, body.stream)


def ollama_error(error: ApiError, request_id: str) -> OllamaError:
    """The error's name and the request's are in no body of Ollama's."""
    return OllamaError(error=error.message)


def _asked(request: Generate, reply: OllamaReply, stream: bool | None) -> Asked:
    return Asked(request, WholeOllamaAnswer(reply) if stream is False else OllamaLines(reply))


def _loaded(reply: OllamaReply) -> OllamaAnswer:
    """What front ends ask before the first question: the model is ready."""
    return reply.piece(done=True, done_reason="load")


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
