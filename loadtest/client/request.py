"""Requests as bytes, so that they can be made before a clock runs. Pure."""

import json
from collections.abc import Mapping


def request_bytes(
    method: str, path: str, body: bytes = b"", *, host: str = "127.0.0.1", key: str | None = None
) -> bytes:
    """An HTTP/1.1 request in one piece: Nagle's algorithm and delayed acknowledgements can hold up a second piece."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream, application/json\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def post_json(path: str, fields: Mapping[str, object], *, host: str = "127.0.0.1") -> bytes:
    return request_bytes("POST", path, json.dumps(fields).encode(), host=host)
