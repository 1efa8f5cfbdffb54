"""The frames of the WebSocket `/v1/stream`: JSON text, each with its `type`.

`id` is the client's name for a request, unique among its running ones. `seq` counts the server's frames of one request
from 0. Every `create` is answered by exactly one `finished` or `failed`. If its `id` is taken by a running request, it
gets an `error` and the running request continues. Frames that belong to no request get an `error` too.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .errors import ErrorDetail
from .events import FinishReason, Timing
from .explanation import Explanation
from .openai_responses import ChatLogprobs, UsageBody

RequestName = Annotated[str, Meta(min_length=1, max_length=128)]


class ClientFrame(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the frames that clients send."""


class Auth(ClientFrame, frozen=True, kw_only=True, tag="auth"):
    """The first frame, if keys are configured and the handshake had no Authorization header."""

    api_key: str


class Create(ClientFrame, frozen=True, kw_only=True, tag="create"):
    """Start a request: the body of a chat completion, or of a completion if it has a `prompt`."""

    id: RequestName
    request: Raw


class CancelFrame(ClientFrame, frozen=True, kw_only=True, tag="cancel"):
    """Stop a request; its `finished` then has the reason `cancelled`. Harmless if it has already ended."""

    id: RequestName


class CreditFrame(ClientFrame, frozen=True, kw_only=True, tag="credit"):
    """The client accepts `tokens` more tokens of this request. After the first such frame it gets only granted ones."""

    id: RequestName
    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ExplainFrame(ClientFrame, frozen=True, kw_only=True, tag="explain"):
    """Why is this running request where it is? Answered by an `explanation`, or an `error` if it has ended."""

    id: RequestName


FromClient = Auth | Create | CancelFrame | CreditFrame | ExplainFrame


class ServerFrame(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the frames that the server sends."""


class StartedFrame(ServerFrame, frozen=True, kw_only=True, tag="started"):
    """The request has its place; `request_id` is its name in the server's log."""

    id: str
    seq: int
    model: str
    request_id: str


class TokenFrame(ServerFrame, frozen=True, kw_only=True, tag="token"):
    """Text of one choice. `tokens` is how many token ids it covers, and what flow control counts."""

    id: str
    seq: int
    index: int
    kind: Literal["text", "reasoning", "tool"]
    text: str
    tokens: int
    logprobs: ChatLogprobs | UnsetType = UNSET


class FinishedChoice(Struct, frozen=True, kw_only=True):
    index: int
    reason: FinishReason
    stop_reason: str | int | None = None


class FinishedFrame(ServerFrame, frozen=True, kw_only=True, tag="finished"):
    id: str
    seq: int
    reason: FinishReason
    choices: list[FinishedChoice]
    usage: UsageBody
    timing: Timing


class FailedFrame(ServerFrame, frozen=True, kw_only=True, tag="failed"):
    id: str
    seq: int
    error: ErrorDetail
    retry_after: int | UnsetType = UNSET  # seconds, as in the Retry-After header of a 429 or 503


class ErrorFrame(ServerFrame, frozen=True, kw_only=True, tag="error"):
    error: ErrorDetail


class ExplanationFrame(ServerFrame, frozen=True, kw_only=True, tag="explanation"):
    """The answer to an `explain`. It is not part of the request's own answer, so it has no `seq`."""

    id: str
    explanation: Explanation


ToClient = StartedFrame | TokenFrame | FinishedFrame | FailedFrame | ErrorFrame | ExplanationFrame
