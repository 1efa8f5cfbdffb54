"""Bounds what a client's small frames may cost, over HTTP/2 and over a WebSocket.

A parser spends 10 to 100 µs on a frame, whatever it holds, so a MiB of nearly empty frames would hold up everybody's
tokens for seconds. Frames that bring nothing are therefore paid from a budget. Over HTTP/2 they are counted before h2
parses them: it reports no event for some, and undoes nothing for others.
"""

from collections.abc import Iterator
from typing import Final

import trio

BURST: Final = 500  # frames; a browser that closes every tab at once sends about 100
PER_SECOND: Final = 50.0
USEFUL_BYTES: Final = 1024  # of data in a frame that costs nothing
PIECE_FRAMES: Final = 32  # parsed between two turns of the event loop: at most 3 ms

_PREFACE_BYTES: Final = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_HEAD_BYTES: Final = 9  # RFC 9113, 4.1: length (3), type, flags, stream (4)
_DATA, _HEADERS = 0, 1


class FrameBudget:
    """A token bucket; one token pays one small frame."""

    __slots__ = ("_left", "_seen")

    def __init__(self) -> None:
        self._left = float(BURST)
        self._seen = trio.current_time()

    def spend(self, price: float) -> bool:
        """Whether the client may send frames of this price now."""
        now = trio.current_time()
        self._left = min(float(BURST), self._left + (now - self._seen) * PER_SECOND) - price
        self._seen = now
        return self._left >= 0

    def earn(self, frames: float) -> None:
        """Allow more frames, as answers to ours."""
        self._left += frames  # the next `spend` caps it


class FrameCutter:
    """Cuts an HTTP/2 client's bytes, from the preface on, into pieces of a few frames, each with its price."""

    def __init__(self) -> None:
        self._head = bytearray()  # of the next frame, as far as received
        self._skip = _PREFACE_BYTES  # bytes before that head
        self._newest = 0  # the highest stream that the client has opened

    def cut(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        start = at = frames = 0
        price = 0.0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            part = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == _HEAD_BYTES:
                price += self._price()
                frames += 1
                self._skip = int.from_bytes(self._head[:3], "big")
                self._head.clear()
                if frames % PIECE_FRAMES == 0:
                    yield data[start:at], price
                    start, price = at, 0.0
        if start < len(data):
            yield data[start:], price

    def _price(self) -> float:
        length, kind = int.from_bytes(self._head[:3], "big"), self._head[3]
        if kind == _DATA:
            return max(0.0, 1 - length / USEFUL_BYTES)
        stream = int.from_bytes(self._head[5:], "big") & 0x7FFFFFFF
        if kind == _HEADERS and stream > self._newest:  # a request, which has limits of its own
            self._newest = stream
            return 0.0
        return 1.0
