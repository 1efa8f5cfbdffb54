"""The frames of the WebSocket `/v1/stream`: JSON text, each with its `type`.

`id` is the client's name for a request, unique among its running ones. `seq` counts the server's frames of one request
from 0. Every `create` is answered by exactly one `finished` or `failed`. If its `id` is taken by a running request, it
gets an `error` and the running request continues. Frames that belong to no request get an `error` too.

With a `disconnect_policy` a request survives its socket. Its first frame is `accepted`, with a token. `resume` with
this token continues the answer on another socket, from the frame with the number `after`; the numbers go on.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .errors import ErrorDetail
from .events import CallStart, FinishReason, Timing
from .explanation import Explanation
from .openai_responses import ChatLogprobs, UsageBody
from .reports import Loading, WorkerState

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
    # As a `credit` frame that cannot come late: an answer may be over before the next frame is read.
    credit: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class ResumeFrame(ClientFrame, frozen=True, kw_only=True, tag="resume"):
    """Continue the answer with the token `resume`, of which the client has `after` frames, under the name `id`.

    The answer goes on here alone: on the socket that had it, it ends as `failed` with `resumed_elsewhere`.
    """

    id: RequestName
    resume: Annotated[str, Meta(max_length=256)]
    after: Annotated[int, Meta(ge=0)] = 0


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


FromClient = Auth | Create | ResumeFrame | CancelFrame | CreditFrame | ExplainFrame


class ServerFrame(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the frames that the server sends."""


class AcceptedFrame(ServerFrame, frozen=True, kw_only=True, tag="accepted"):
    """The first frame of a request that survives its socket. `resume` is the token that continues it on another."""

    id: str
    seq: int
    request_id: str
    resume: str


class StartedFrame(ServerFrame, frozen=True, kw_only=True, tag="started"):
    """The request has its place; `request_id` is its name in the server's log."""

    id: str
    seq: int
    model: str
    request_id: str


class CallBegins(Struct, frozen=True, kw_only=True):
    """A tool call's id and function, in the first frame of the call."""

    id: str
    name: str


def call_begins(start: CallStart | None) -> CallBegins | UnsetType:
    return UNSET if start is None else CallBegins(id=start.id, name=start.name)


class PromptFrame(ServerFrame, frozen=True, kw_only=True, tag="prompt"):
    """The prompt of one choice as token ids, with `return_token_ids`."""

    id: str
    seq: int
    index: int
    token_ids: tuple[int, ...]


class TokenFrame(ServerFrame, frozen=True, kw_only=True, tag="token"):
    """Text of one choice. `tokens` is how many token ids it covers, and what flow control counts.

    With the kind `tool`, `text` is a piece of the arguments of call number `call`; the call's first frame has `begins`.
    """

    id: str
    seq: int
    index: int
    kind: Literal["text", "reasoning", "tool"]
    text: str
    tokens: int
    call: int | UnsetType = UNSET
    begins: CallBegins | UnsetType = UNSET
    logprobs: ChatLogprobs | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET  # with `return_token_ids`; a stop token is among them


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


class StatusFrame(ServerFrame, frozen=True, kw_only=True, tag="status"):
    """The engine is not ready, why and how far it is; or it is ready again. A socket is told of changes only.

    Until the model is loaded for the first time, a `create` fails with `model_loading`. After that requests wait.
    """

    ready: bool
    status: WorkerState
    reason: str
    loading: Loading | UnsetType = UNSET


ToClient = (
    AcceptedFrame
    | StartedFrame
    | PromptFrame
    | TokenFrame
    | FinishedFrame
    | FailedFrame
    | ErrorFrame
    | ExplanationFrame
    | StatusFrame
)
