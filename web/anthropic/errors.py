"""Errors in Anthropic's form, with the types that its clients know."""

from typing import Final

from ...protocol.anthropic_responses import AnthropicError, AnthropicErrorDetail, AnthropicErrorDetails
from ...protocol.errors import ApiError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: ApiError, request_id: str) -> AnthropicError:
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by these words Claude Code knows that it must shorten its context
    details = AnthropicErrorDetails(error_code=error.code, param=error.param)
    kind = _TYPES.get(error.status, "invalid_request_error")
    return AnthropicError(
        error=AnthropicErrorDetail(type=kind, message=message, details=details), request_id=request_id
    )
