"""Chunks of a streamed body written straight to the connection, past the layers between a handler and its socket.

A token's way through Quart, hypercorn and h11 costs five times what writing it does, and two turns of the event loop. A
connection that speaks HTTP/1.1 offers `write_chunk` in its ASGI state; head and end of the response, and whatever the
kernel does not take at once, go the ordinary way.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

WRITE_CHUNK: Final = "triolet.write_chunk"
Written = Literal["all", "part", "nothing"]


class LastPiece(bytes):
    """A piece of a body that nothing follows: it leaves with the body's end, in one write."""


WriteChunk = Callable[[bytes], Written]


def chunk_writer(scope: Mapping[str, Any]) -> WriteChunk | None:  # Any: ASGI scopes hold everything
    """Of the connection that a request came on; None where the server offers none, or the body is not chunked."""
    write: WriteChunk | None = scope.get("state", {}).get(WRITE_CHUNK)
    return write if scope.get("http_version") == "1.1" and scope.get("method") != "HEAD" else None
