"""Every error as a JSON body in the OpenAI shape: ours, the framework's (404, 405, 413 …), our bugs. Never HTML."""

import logging
from collections import Counter

import msgspec
from quart import request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from ..protocol.errors import REGISTRY, ApiError, ErrorCode
from ..protocol.events import Failed
from .exchange import Content, Field, json_content

log = logging.getLogger("triolet.http")

_CODE_OF_STATUS: dict[int, ErrorCode] = {
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "content_too_large",
    415: "unsupported_media_type",
    426: "upgrade_required",
}
_CODES: dict[str, ErrorCode] = {code: code for code in REGISTRY}
RETRY_AFTER = 1  # seconds, the default: a step takes far less


class ErrorContents:
    """Turns every failure into the answer to its request, and counts it by code."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def __call__(self, error: Exception) -> Content:
        allow: tuple[Field, ...] = ()
        if isinstance(error, ApiError):
            said = error
        elif isinstance(error, HTTPException):
            said = _framework(error)
            if isinstance(error, MethodNotAllowed) and error.valid_methods:
                allow = ((b"allow", ", ".join(sorted(error.valid_methods)).encode()),)
        else:
            said = unexpected(error)
        self._counts[said.code] += 1
        return error_content(said, allow)


def error_content(error: ApiError, extra: tuple[Field, ...] = ()) -> Content:
    if error.status in (429, 503):
        seconds = RETRY_AFTER if error.retry_after is None else error.retry_after
        extra = ((b"retry-after", b"%d" % seconds), *extra)
    elif error.status == 401:
        extra = ((b"www-authenticate", b"Bearer"), *extra)
    return json_content(msgspec.json.encode(error.body()), error.status, extra)


def error_of(failed: Failed) -> ApiError:
    """A request's terminal event as the error that its client sees."""
    code = _CODES.get(failed.code, "internal_error")
    return ApiError(code, failed.message, param=failed.param, retry_after=failed.retry_after)


def unexpected(error: Exception) -> ApiError:
    """A bug: the log gets all details, the client only the fact."""
    log.error("unexpected error", exc_info=error)
    return ApiError("internal_error", "The server made a mistake while handling this request; its log has the details.")


def _framework(error: HTTPException) -> ApiError:
    status = error.code or 500
    code = _CODE_OF_STATUS.get(status, "bad_request" if status < 500 else "internal_error")
    return ApiError(code, _message(code, error))


def _message(code: ErrorCode, error: HTTPException) -> str:
    if code == "not_found":
        return "There is nothing at this path."
    if code == "method_not_allowed":
        return f"{request.method} is not allowed at this path."
    if code == "content_too_large":
        return "The body is larger than this server accepts (--max-body-bytes)."
    if code == "request_timeout":
        return "The body did not arrive in time."
    return error.description or "The request cannot be handled."
