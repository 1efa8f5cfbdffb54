"""Every error as a JSON body: ours, the framework's (404, 405, 413 …), our bugs. Never HTML.

The body has OpenAI's shape, but below the paths of another dialect that dialect's.
"""

import logging
from collections import Counter
from collections.abc import Callable
from math import ceil

import msgspec
import trio
from quart import current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from ..protocol.errors import REGISTRY, ApiError, ErrorCode, without_frames
from ..protocol.events import Failed
from ..protocol.reports import Health
from .exchange import Content, Field, json_content
from .paths import not_found

log = logging.getLogger("triolet.http")

_CODE_OF_STATUS: dict[int, ErrorCode] = {
    404: "not_found",
    405: "method_not_allowed",
    415: "unsupported_media_type",
    426: "upgrade_required",
}
_CODES: dict[str, ErrorCode] = {code: code for code in REGISTRY}
WRONG_KEY_SECONDS = 0.2  # before a refused key is answered: who guesses needs a connection for each five a second
# The clients of OpenAI and Anthropic would repeat these by themselves, and hear the same again.
FINAL: frozenset[ErrorCode] = frozenset({"conflict", "deadline_exceeded", "nonfinite_logits", "resumed_elsewhere"})
RETRY_AFTER = 1  # seconds, the default: a step takes far less
LOAD_SECONDS = 2  # until a load of unknown length is asked about again
MAX_LOAD_SECONDS = 60  # however long it will take: estimates change


ErrorForm = Callable[[ApiError, str], msgspec.Struct]  # of an error and the request's id, a dialect's body


class ErrorContents:
    """Turns every failure into the answer to its request, and counts it by code."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.forms: dict[str, ErrorForm] = {}  # by the beginning of a path, below the root path

    async def answer(self, error: Exception, path: str, request_id: str) -> Content:
        """The same, but a wrong key waits. Valid keys never do, whatever comes from the same address."""
        content = self(error, path, request_id)
        if content.status == 401 or (isinstance(error, ApiError) and error.code == "too_many_wrong_keys"):
            await pause_of_wrong_key()
        return content

    def __call__(self, error: Exception, path: str, request_id: str) -> Content:
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
        without_frames(error)
        form = next((form for beginning, form in self.forms.items() if path.startswith(beginning)), None)
        return error_content(said, allow, None if form is None else form(said, request_id))


async def pause_of_wrong_key() -> None:
    await trio.sleep(WRONG_KEY_SECONDS)


def error_content(error: ApiError, extra: tuple[Field, ...] = (), body: msgspec.Struct | None = None) -> Content:
    """`body`: a dialect's own; OpenAI's otherwise."""
    if error.status in (429, 503):
        seconds = RETRY_AFTER if error.retry_after is None else error.retry_after
        extra = ((b"retry-after", b"%d" % seconds), *extra)
    elif error.code in FINAL:
        extra = ((b"x-should-retry", b"false"), *extra)
    elif error.status == 401:
        extra = ((b"www-authenticate", b"Bearer"), *extra)
    return json_content(msgspec.json.encode(body or error.body()), error.status, extra)


def error_of(failed: Failed) -> ApiError:
    """A request's terminal event as the error that its client sees."""
    code = _CODES.get(failed.code, "internal_error")
    return ApiError(code, failed.message, param=failed.param, retry_after=failed.retry_after)


def unready_error(health: Health) -> ApiError:
    """Why the engine computes nothing now, how far its model is loaded, and when to try again."""
    loading = health.loading
    left = None if loading is None else loading.seconds_left
    return ApiError(
        "model_loading" if health.status == "loading" else "engine_unavailable",
        f"Not ready ({health.status}): {health.reason}",
        retry_after=LOAD_SECONDS if left is None else min(max(ceil(left), 1), MAX_LOAD_SECONDS),
        loading=loading,
    )


def unexpected(error: Exception) -> ApiError:
    """A bug: the log gets all details, the client only the fact."""
    log.error("unexpected error", exc_info=error)
    return ApiError("internal_error", "The server made a mistake while handling this request; its log has the details.")


def _framework(error: HTTPException) -> ApiError:
    status = error.code or 500
    code = _CODE_OF_STATUS.get(status, "bad_request" if status < 500 else "internal_error")
    if code == "not_found":
        return not_found(request.path, {rule.rule for rule in current_app.url_map.iter_rules() if "<" not in rule.rule})
    return ApiError(code, _message(code, error))


def _message(code: ErrorCode, error: HTTPException) -> str:
    if code == "method_not_allowed":
        allowed = error.valid_methods if isinstance(error, MethodNotAllowed) else None
        use = " or ".join(sorted({*(allowed or ())} - {"HEAD", "OPTIONS"}))
        return f"{request.method[:20]} is not allowed at this path; use {use}."
    return error.description or "The request cannot be handled."
