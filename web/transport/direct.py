"""A streamed body written straight to the connection, past the layers between a handler and its socket.

A token's way through Quart, hypercorn and h11 or wsproto costs five times what writing it does, and two turns of the
event loop. A connection that speaks HTTP/1.1 offers `write_chunk` in its ASGI state, a WebSocket a `DirectWriter`; head
and end of the response, and whatever the kernel does not take at once, go the ordinary way.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

WRITER: Final = "triolet.writer"  # of bytes: for the WebSocket on the connection
KEEP_PINGING: Final = "triolet.keep_pinging"  # takes a WebSocket's ping (pings.py)
WRITE_CHUNK: Final = "triolet.write_chunk"
FRAME_WRITER: Final = "triolet.frame_writer"
Written = Literal["all", "part", "nothing"]


class LastPiece(bytes):
    """A piece of a body that nothing follows: it leaves with the body's end, in one write."""


WriteChunk = Callable[[bytes], Written]  # of a chunk with its size and its end


class DirectWriter(NamedTuple):
    """`write`, outside any task: whole frames, or on a WebSocket the text of whole messages.

    `part`: the kernel took the beginning, and the rest goes before anything else; `finish`, soon, sends it.
    `nothing`: the caller must send it in the ordinary way.
    """

    write: Callable[[bytes], Written]
    finish: Callable[[], Awaitable[None]]


def chunk_writer(scope: Mapping[str, Any]) -> WriteChunk | None:  # Any: ASGI scopes hold everything
    """Of the connection that a request came on; None where the server offers none, or the body is not chunked."""
    write: WriteChunk | None = scope.get("state", {}).get(WRITE_CHUNK)
    return write if scope.get("http_version") == "1.1" and scope.get("method") != "HEAD" else None


def frame_writer(scope: Mapping[str, Any]) -> DirectWriter | None:  # Any: as above
    """Of the WebSocket with this scope; None where the server offers none."""
    writer: DirectWriter | None = scope.get("state", {}).get(FRAME_WRITER)
    return writer


def text_frame(payload: bytes) -> bytes:
    """A whole message from a server (RFC 6455, 5.2): final, text, without a mask."""
    length = len(payload)
    return (FRAME_HEADS[length] if length < len(FRAME_HEADS) else _frame_head(length)) + payload


def _frame_head(length: int) -> bytes:
    if length < 126:
        return bytes((0x81, length))
    if length < 1 << 16:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")


FRAME_HEADS: Final = tuple(map(_frame_head, range(512)))  # of nearly all: a token and what goes with it
