"""Requests as JSON bodies: chat completions and text completions. Pure; encoded before a request's clock starts."""

from collections.abc import Sequence
from typing import Final

import msgspec

from .settings import LoadSettings

_encode: Final = msgspec.json.Encoder().encode


def body_of(
    settings: LoadSettings, model: str | None, turns: Sequence[tuple[str, str]], tokens: int, priority: int | None
) -> bytes:
    """The next request of a conversation. `turns` are (question, answer); the last has no answer yet."""
    body: dict[str, object] = {"max_tokens": tokens}
    if model is not None:
        body["model"] = model
    if settings.api == "completions":
        body["prompt"] = "\n".join(part for turn in turns for part in turn if part)
    else:
        roles = ("user", "assistant")
        body["messages"] = [
            {"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True) if text
        ]
    if settings.api != "websocket":  # it always streams and reports usage in its last frame
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if settings.ignore_eos:
        body["ignore_eos"] = True
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if priority is not None:
        body["priority"] = priority
    return _encode({**body, **settings.extra_body})
