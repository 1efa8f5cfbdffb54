"""Extracts a body from HTTP/1.1's framing, and events from a stream of bytes. Pure, incremental.

h11 reads heads (client.py). Bodies are read here, because a stream of tokens is thousands of tiny chunks. Parsing one
costs 2 µs here, while h11 makes several Python objects of it. Malformed input raises BadBody.
"""

from functools import lru_cache
from typing import Protocol

LONGEST_SIZE_LINE = 1024  # of a chunk, extensions included; also of a trailer
LONGEST_EVENT = 16 * 1024 * 1024


class BadBody(ValueError):
    """Bytes that break the framing."""


class Body(Protocol):
    complete: bool

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`; sets `complete` once the last byte was seen."""
        ...

    def end(self) -> bool:
        """The connection ended; returns whether the body was complete."""
        ...


class ChunkedBody:
    def __init__(self) -> None:
        self.complete = False
        self._buffer = b""
        self._left = 0  # bytes of the chunk still to come
        self._after_chunk = False  # its line end is still to come
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        buffer = self._buffer + data if self._buffer else data
        parts: list[bytes] = []
        place = 0
        while not self.complete:
            if self._left:
                part = buffer[place : place + self._left]
                if not part:
                    break
                parts.append(part)
                place += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._after_chunk = True
            end = buffer.find(b"\n", place)
            if end < 0:
                if len(buffer) - place > LONGEST_SIZE_LINE:
                    raise BadBody("a chunk's size line has no end")
                break
            line = buffer[place:end].rstrip(b"\r")
            place = end + 1
            if self._after_chunk:
                if line:
                    raise BadBody(f"a chunk is longer than it says: {line[:40]!r}")
                self._after_chunk = False
            elif self._in_trailers:
                self.complete = not line
            else:
                self._left = _chunk_size(line)
                self._in_trailers = self._left == 0
        self._buffer = buffer[place:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> bool:
        return self.complete


@lru_cache(1024)  # a server's chunks have few different sizes
def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):  # int() would accept a sign, spaces and 0x
        raise BadBody(f"no chunk size: {line[:40]!r}")
    return int(digits, 16)


class CountedBody:
    """A body of Content-Length bytes."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = length == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            raise BadBody(f"{len(data) - self._left} bytes beyond Content-Length")
        self._left -= len(data)
        self.complete = self._left == 0
        return data

    def end(self) -> bool:
        return self.complete


class OpenBody:
    """A body that ends when the connection closes."""

    complete = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bool:
        self.complete = True
        return True


class EventStream:
    """The `data` of each server-sent event, returned when its last byte arrives; comments and other fields are dropped.

    `failed`: whether an event was named `error`.
    """

    def __init__(self) -> None:
        self.failed = False
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer + data if self._buffer else data
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        if len(buffer) > LONGEST_EVENT and b"\n\n" not in buffer:
            raise BadBody("an event has no end")
        *events, self._buffer = buffer.split(b"\n\n")
        found: list[bytes] = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                found.append(event[6:])
            else:
                self.failed = self.failed or b"event: error" in event.split(b"\n")
                if data := _data_of(event):
                    found.append(data)
        return found


def _data_of(event: bytes) -> bytes:
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
