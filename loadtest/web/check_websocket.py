"""Checks every byte of a WebSocket: handshake, unmasked frames, sequence numbers, text, and exactly one end."""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from triolet.protocol.stream_frames import FinishedFrame, StartedFrame, ToClient, TokenFrame

from .check_sse import Arrivals, StreamError
from .script import Script

_FRAME = msgspec.json.Decoder[ToClient](ToClient)
_TEXT, _CONTINUATION = 1, 0


def server_frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(end offset, opcode, payload) of every complete frame after the handshake."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    if not separator or not head.startswith(b"HTTP/1.1 101"):
        raise StreamError(f"the handshake is answered with {data[:200]!r}")
    place = len(head) + 4
    while place + 2 <= len(data):
        opcode, length, start = data[place] & 0x0F, data[place + 1] & 0x7F, place + 2
        if not data[place] & 0x80:
            raise StreamError("a frame came in fragments")
        if length >= 126:
            size = 2 if length == 126 else 8
            length, start = int.from_bytes(data[start : start + size], "big"), start + size
        place = start + length
        if place > len(data):
            return
        yield place, opcode, data[start:place]


def check_socket(data: bytes, script: Script, key: int, tokens: int) -> Arrivals:
    """Check a socket with one request, a completion of `tokens` tokens."""
    lengths = script.text_lengths(key, tokens)
    arrivals = Arrivals([], [], [])
    text: list[str] = []
    characters = events = counted = numbered = 0
    finished: FinishedFrame | None = None
    for end, opcode, payload in server_frames(data):
        if opcode != _TEXT:
            continue
        frame = _FRAME.decode(payload)
        if finished is not None or not isinstance(frame, StartedFrame | TokenFrame | FinishedFrame):
            raise StreamError(f"an error, or a frame after the end: {payload[:200]!r}")
        if frame.seq != numbered:
            raise StreamError(f"frame {frame.seq} came where {numbered} was due")
        numbered += 1
        if isinstance(frame, TokenFrame):
            text.append(frame.text)
            characters += len(frame.text)
            counted += frame.tokens
            events += 1
        elif isinstance(frame, FinishedFrame):
            finished = frame
        arrivals.offsets.append(end)
        arrivals.events.append(events)
        arrivals.tokens.append(bisect_right(lengths, characters))
    if "".join(text) != script.text(key, tokens) or counted != tokens:
        raise StreamError(f"the text of stream {key} is not the script's, or {counted} tokens are not {tokens}")
    if finished is None or finished.reason != "length" or finished.usage.completion_tokens != tokens:
        raise StreamError(f"the stream ended with {finished}")
    return arrivals
