"""Requests that wait for the tokenizer: API keys take turns, so a flood of one delays another by one hop at most. Pure.

The tokenizer handles a few megabytes a second. First come, first served would let 300 long prompts of one key hold up
everybody's next request for as long as they take.
"""

from typing import Final

from ...protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt, TokenPrompt
from ..turns import LinesByKey

BATCH: Final = 16  # requests per hop: enough to hide its 42 µs, few enough that the first does not wait long
BATCH_TEXT: Final = 1 << 16  # characters per hop, unless one request has more: about 20 ms
_IDS_PER_CHARACTER: Final = 32  # token ids are only checked


class TextQueue:
    """One line for each key. It holds no more requests than the gateway has places."""

    def __init__(self) -> None:
        self._lines = LinesByKey[Generate]()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, request: Generate) -> None:
        self._lines.add(request.tenant, request)

    def next_batch(self) -> list[Generate]:
        """The requests of the next hop: one of each key in turn, until there are enough."""
        batch: list[Generate] = []
        text = 0
        while self._lines and len(batch) < BATCH and text < BATCH_TEXT:
            batch.append(self._lines.next())
            text += characters(batch[-1])
        return batch


def characters(request: Generate) -> int:
    """How much text a request has; token ids count for little, and JSON of any shape as a hop of its own."""
    total = 0
    for prompt in request.prompts:
        match prompt:
            case TextPrompt(text=text, suffix=suffix, second=second):
                total += len(text) + len(suffix) + len(second or "")
            case TokenPrompt(token_ids=ids):
                total += len(ids) // _IDS_PER_CHARACTER
            case ChatPrompt(messages=messages):
                total += sum(map(_characters_of, messages))
                if prompt.documents or prompt.template_variables or prompt.tools:
                    total += BATCH_TEXT
    return total


def _characters_of(message: ChatMessage) -> int:
    texts = [message.role, message.content, message.reasoning_content, message.name, message.tool_call_id]
    for call in message.tool_calls or ():
        texts += [call.id, call.function.name, call.function.arguments]
    return sum(len(text) for text in texts if text)
