"""Reads the body of a message: what the engine is asked for, and how the answer is written."""

from typing import Final

import msgspec

from ...protocol.anthropic_requests import CountTokensBody, MessagesBody
from ...protocol.requests import ChatPrompt
from ..generation.asked import Asked, Origin, ServedModel
from ..generation.disconnect import waiting_seconds
from ..openai.decode import decode
from .message import WholeMessage
from .message_events import MessageEvents
from .request import generate_from_messages, prompt_to_count

_MESSAGES: Final = msgspec.json.Decoder(MessagesBody)
_COUNT_TOKENS: Final = msgspec.json.Decoder(CountTokensBody)


def read_messages(served: ServedModel, origin: Origin, data: bytes) -> Asked:
    """Raises ApiError (400, 404)."""
    body = decode(data, _MESSAGES)
    request = generate_from_messages(body, served, origin)
    waits = waiting_seconds(body.disconnect_policy, served.limits, stream=body.stream)
    return Asked(request, MessageEvents(request) if body.stream else WholeMessage(request), waits)


def read_prompt(served: ServedModel, origin: Origin, data: bytes) -> ChatPrompt:
    """Raises ApiError (400, 404)."""
    return prompt_to_count(decode(data, _COUNT_TOKENS), served, origin.fallbacks)
