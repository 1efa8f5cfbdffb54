"""Fields common to the answers of all OpenAI-compatible servers. Unknown fields are ignored. Pure."""

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}  # below /v1


class AnyDelta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw | UnsetType = UNSET


class AnyChoice(Struct):
    delta: AnyDelta | None = None
    text: str | None = None
    finish_reason: str | None = None


class AnyPromptDetails(Struct):
    cached_tokens: int | None = None


class AnyUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: AnyPromptDetails | None = None


class AnyChunk(Struct):
    choices: list[AnyChoice] = []
    usage: AnyUsage | None = None
    error: msgspec.Raw | UnsetType = UNSET

    def refusal(self) -> str | None:
        """The message of an error event; None for a chunk of an answer."""
        return text_of_error(self.error)

    def text(self) -> str:
        """The text of all its choices."""
        return "".join((choice.text if choice.delta is None else choice.delta.content) or "" for choice in self.choices)


class _ErrorText(Struct):
    message: str = ""


class _ErrorBody(Struct):
    """The shapes of an error's body: OpenAI's, a flat one, and a plain string."""

    error: _ErrorText | str | None = None
    message: str = ""


class _ListedModel(Struct):
    id: str


class _ListedModels(Struct):
    data: list[_ListedModel]


decode_chunk: Final = msgspec.json.Decoder(AnyChunk).decode
_decode_error: Final = msgspec.json.Decoder(_ErrorBody).decode


def text_of_error(error: msgspec.Raw | UnsetType) -> str | None:
    """The message of a chunk's `error`; None where there is none."""
    if error is UNSET or bytes(error) == b"null":
        return None
    return refusal_text(b'{"error":' + bytes(error) + b"}")


def refusal_text(body: bytes) -> str:
    """The message of an error's body, in any of these shapes; of another text, such as a page, the first line."""
    try:
        refusal = _decode_error(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.lstrip()[:200].decode(errors="replace").partition("\n")[0].strip()
    error = refusal.error
    return (error if isinstance(error, str) else error.message if error else refusal.message) or body[:200].decode()


def listed_models(body: bytes) -> list[str]:
    """The names in an answer to /v1/models. Raises msgspec.MsgspecError."""
    return [each.id for each in msgspec.json.decode(body, type=_ListedModels).data]
