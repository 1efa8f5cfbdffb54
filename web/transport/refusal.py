"""What a peer is told when the server will not go on with its connection, before any application code has run."""

import msgspec

from ...protocol.errors import REGISTRY, ErrorBody, ErrorCode, ErrorDetail

CODES: dict[int, ErrorCode] = {404: "not_found", 417: "expectation_failed", 431: "headers_too_large"}
MESSAGES = {
    400: "The request is not valid HTTP for this server.",
    403: "The WebSocket handshake was refused.",
    404: "There is no WebSocket at this address.",
    431: "The request line and headers are larger than 16 KiB.",
    500: "The server had an error while processing the request.",
    501: "The Transfer-Encoding is not supported; send chunked or a Content-Length.",
}


class ConnectionRefused(Exception):
    """Ends one connection on purpose: the peer has been answered, the reason goes to the log in one line."""


def error_answer(status: int, reason: str | None = None) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an error in the shape that every other error of the API has."""
    code = CODES.get(status, "bad_request" if status < 500 else "internal_error")
    message = reason or MESSAGES.get(status, MESSAGES[400])
    body = msgspec.json.encode(ErrorBody(error=ErrorDetail(message=message, type=REGISTRY[code].type, code=code)))
    length = str(len(body)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")], body
