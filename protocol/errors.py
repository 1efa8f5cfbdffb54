"""Every error a client can see, declared once: its code, HTTP status and OpenAI type.

The body has OpenAI's form `{"error": {"message", "type", "param", "code"}}` on every route and protocol, so the
official clients raise the matching exception class. A new code needs a row in `REGISTRY` and nothing else.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple, TypeVar

from msgspec import UNSET, Struct, UnsetType

from .reports import Loading

_SHOWN, _SHOWN_NAMES = 100, 20  # characters of a name, and names, in an error

ErrorCode = Literal[
    "bad_request", "invalid_json", "invalid_type", "invalid_value", "integer_out_of_range", "unknown_parameter",
    "unsupported_parameter", "invalid_messages", "invalid_grammar", "invalid_stop", "invalid_token_id",
    "invalid_cache_salt", "context_length_exceeded", "invalid_api_key", "origin_forbidden", "not_found",
    "model_not_found",
    "method_not_allowed", "request_timeout", "resumed_elsewhere", "content_too_large", "unsupported_media_type",
    "unsupported_encoding", "expectation_failed", "misdirected", "upgrade_required", "headers_too_large",
    "invalid_event", "rate_limit_exceeded", "server_overloaded", "deadline_exceeded",
    "deadline_unmeetable", "too_many_wrong_keys", "engine_error",
    "nonfinite_logits", "engine_unavailable", "model_loading", "shutting_down", "internal_error",
    "unsupported_endpoint", "host_forbidden", "conflict", "storage_full", "grammar_failed",
    "adapter_failed", "no_token_left", "quarantined",
]  # fmt: skip


class ErrorKind(NamedTuple):
    """The HTTP status of a code and the `type` that OpenAI's clients know."""

    status: int
    type: str


_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"

REGISTRY: Final[dict[ErrorCode, ErrorKind]] = {
    "bad_request": ErrorKind(400, _INVALID),
    "invalid_json": ErrorKind(400, _INVALID),
    "invalid_type": ErrorKind(400, _INVALID),
    "invalid_value": ErrorKind(400, _INVALID),
    "integer_out_of_range": ErrorKind(400, _INVALID),
    "unknown_parameter": ErrorKind(400, _INVALID),
    "unsupported_parameter": ErrorKind(400, _INVALID),
    "invalid_messages": ErrorKind(400, _INVALID),
    "invalid_grammar": ErrorKind(400, _INVALID),
    "invalid_stop": ErrorKind(400, _INVALID),
    "invalid_token_id": ErrorKind(400, _INVALID),
    "invalid_cache_salt": ErrorKind(400, _INVALID),
    "context_length_exceeded": ErrorKind(400, _INVALID),
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "origin_forbidden": ErrorKind(403, "permission_error"),
    "host_forbidden": ErrorKind(403, "permission_error"),
    "not_found": ErrorKind(404, _INVALID),
    "unsupported_endpoint": ErrorKind(404, _INVALID),
    "model_not_found": ErrorKind(404, _INVALID),
    "method_not_allowed": ErrorKind(405, _INVALID),
    "request_timeout": ErrorKind(408, _INVALID),
    "resumed_elsewhere": ErrorKind(409, _INVALID),
    "conflict": ErrorKind(409, _INVALID),
    "storage_full": ErrorKind(413, _INVALID),
    "content_too_large": ErrorKind(413, _INVALID),
    "unsupported_media_type": ErrorKind(415, _INVALID),
    "unsupported_encoding": ErrorKind(415, _INVALID),
    "expectation_failed": ErrorKind(417, _INVALID),
    "misdirected": ErrorKind(421, _INVALID),
    "upgrade_required": ErrorKind(426, _INVALID),
    "headers_too_large": ErrorKind(431, _INVALID),
    "invalid_event": ErrorKind(400, _INVALID),
    "rate_limit_exceeded": ErrorKind(429, "rate_limit_error"),
    "server_overloaded": ErrorKind(429, "rate_limit_error"),
    "deadline_exceeded": ErrorKind(504, _SERVER),
    "deadline_unmeetable": ErrorKind(429, "rate_limit_error"),
    "too_many_wrong_keys": ErrorKind(429, "rate_limit_error"),
    "grammar_failed": ErrorKind(400, _INVALID),
    "adapter_failed": ErrorKind(500, _SERVER),
    "no_token_left": ErrorKind(400, _INVALID),
    "quarantined": ErrorKind(422, _INVALID),  # no 5xx: clients would repeat it
    "engine_error": ErrorKind(500, _SERVER),
    "nonfinite_logits": ErrorKind(500, _SERVER),
    "engine_unavailable": ErrorKind(503, _SERVER),
    "model_loading": ErrorKind(503, _SERVER),
    "shutting_down": ErrorKind(503, _SERVER),
    "internal_error": ErrorKind(500, _SERVER),
}


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """The inside of an error body. `param` names the offending field, dotted and indexed (`messages[0].role`).

    `loading` says how far the model is loaded, where that is the reason.
    """

    message: str
    type: str
    param: str | None = None
    code: str
    loading: Loading | UnsetType = UNSET


class ErrorBody(Struct, frozen=True, kw_only=True):
    """`{"error": {…}}`: the body of every refusal and of the SSE `error` event."""

    error: ErrorDetail


class ApiError(Exception):
    """A request is refused or fails; only its client is told.

    `retry_after` (seconds) becomes the Retry-After header of a 429 or 503.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        loading: Loading | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.loading = loading

    @property
    def status(self) -> int:
        return REGISTRY[self.code].status

    def detail(self) -> ErrorDetail:
        return ErrorDetail(
            message=self.message,
            type=REGISTRY[self.code].type,
            param=self.param,
            code=self.code,
            loading=self.loading or UNSET,
        )

    def body(self) -> ErrorBody:
        return ErrorBody(error=self.detail())


def context_exceeded(context_length: int, problem: str, *, param: str) -> ApiError:
    """The error of a request that does not fit. To fall back or to trim, clients look for OpenAI's first sentence.

    LangChain looks for the code in the words of the exception, where OpenAI's library no longer writes it.
    """
    message = f"This model's maximum context length is {context_length} tokens. {problem} (context_length_exceeded)"
    return ApiError("context_length_exceeded", message, param=param)


def model_not_found(model: str, names: Sequence[str]) -> ApiError:
    """The error of a request for a model that is not among these; it names the nearest."""
    near = get_close_matches(model[:_SHOWN], names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    there = f"only {names[0]!r}" if len(names) == 1 else f"but {', '.join(map(repr, names[:_SHOWN_NAMES]))}"
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return ApiError(
        "model_not_found", f"There is no model {model[:_SHOWN]!r} here, {there}{more}.{hint}", param="model"
    )


_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """The same error without its traceback: for those that answer an error instead of raising it on.

    The frames of a traceback hold the request's text, megabytes perhaps. Some of them also hold the error, so that only
    a garbage collection would free the text. The error that this one replaced may hold it too, as UnicodeError does.
    """
    error.__context__ = None
    return error.with_traceback(None)
