"""The benchmark's requests as bytes: completions of token ids, over HTTP and over a WebSocket."""

import base64
import json
import os
from typing import Final

from ..client.request import post_json
from .script import key_of

PROMPT_TOKENS: Final = 8
_FIRST_ID: Final = 400  # after the single bytes at the start of a vocabulary


def prompt_of(stream: int) -> list[int]:
    """A separate prompt and key for each stream. Its last token is complete text, with no half character."""
    high, low = divmod(stream, 1000)
    return [_FIRST_ID + low, _FIRST_ID + high * 1000 % 1009, *[_FIRST_ID] * (PROMPT_TOKENS - 2)]


def key_of_stream(stream: int) -> int:
    return key_of(prompt_of(stream))


def completion_body(stream: int, tokens: int) -> dict[str, object]:
    return {"prompt": prompt_of(stream), "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}


def completion(stream: int, tokens: int) -> bytes:
    return post_json("/v1/completions", completion_body(stream, tokens))


def handshake() -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        "GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def text_frame(text: str) -> bytes:
    """A client's frame, masked with zeros: a mask is required, but any value will do."""
    payload = text.encode()
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x81" + size + b"\0\0\0\0" + payload


def create_frame(stream: int, tokens: int) -> bytes:
    return text_frame(json.dumps({"type": "create", "id": "s", "request": completion_body(stream, tokens)}))
