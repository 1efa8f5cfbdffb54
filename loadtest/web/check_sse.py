"""Checks every byte of a streamed answer: head, chunks, events, ids, order, text, and exactly one end.

The result holds the byte offset at which each token was complete; the caller knows when bytes arrived.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

import msgspec

from triolet.protocol.openai_responses import CompletionChunk

from .script import Script

_CHUNK: Final = msgspec.json.Decoder(CompletionChunk)
DONE: Final = b"[DONE]"


class StreamError(Exception):
    """A stream is wrong; the message names the fault."""


class Arrivals(NamedTuple):
    """`offsets[i]`: bytes after which write i was complete; `events[i]`, `tokens[i]`: their totals at that point."""

    offsets: list[int]
    events: list[int]
    tokens: list[int]

    def at(self, size: int) -> tuple[int, int]:
        """Events and tokens complete after this many bytes."""
        place = bisect_right(self.offsets, size)
        return (self.events[place - 1], self.tokens[place - 1]) if place else (0, 0)


def body_chunks(data: bytes) -> list[tuple[int, bytes]]:
    """The body's chunks, each with its end offset; an empty chunk ends the answer."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    if not separator or not head.startswith(b"HTTP/1.1 200"):
        raise StreamError(f"the answer begins with {data[:200]!r}")
    chunks: list[tuple[int, bytes]] = []
    place = len(head) + 4
    while True:
        line = data.find(b"\r\n", place)
        if line < 0:
            raise StreamError("the answer ends in the middle of a chunk")
        length = int(data[place:line], 16)
        place = line + 2 + length + 2
        if data[place - 2 : place] != b"\r\n":
            raise StreamError(f"a chunk of {length} bytes is not closed")
        if not length:
            break
        chunks.append((place, data[line + 2 : place - 2]))
    if data[place:]:
        raise StreamError(f"something follows the answer's end: {data[place : place + 80]!r}")
    return chunks


def check_raw(data: bytes, event: bytes, events: int) -> Arrivals:
    """Check a stream of the bare server."""
    chunks = body_chunks(data)
    if [chunk for _, chunk in chunks] != [event] * events:
        raise StreamError("the bare server's events are not those it was asked for")
    return Arrivals([end for end, _ in chunks], list(range(1, events + 1)), list(range(1, events + 1)))


def check_stream(data: bytes, script: Script, key: int, tokens: int) -> Arrivals:
    """Check a completion of `tokens` tokens."""
    lengths = script.text_lengths(key, tokens)
    arrivals = Arrivals([], [], [])
    text: list[str] = []
    characters = events = 0
    ids: set[str] = set()
    reasons: list[str] = []
    done = 0
    for end, chunk in body_chunks(data):
        if not chunk.endswith(b"\n\n"):
            raise StreamError(f"a write ends in the middle of an event: {chunk[-80:]!r}")
        for line in chunk[:-2].split(b"\n\n"):
            if line.startswith(b":"):
                continue
            if done or not line.startswith(b"data: "):
                raise StreamError(f"not an event, or one after the end: {line[:200]!r}")
            if line[6:] == DONE:
                done += 1
                continue
            event = _CHUNK.decode(line[6:])
            ids.add(event.id)
            for choice in event.choices:
                if choice.text and reasons:
                    raise StreamError("text after the finish reason")
                text.append(choice.text)
                characters += len(choice.text)
                events += bool(choice.text)
                reasons += [choice.finish_reason] if choice.finish_reason else []
        arrivals.offsets.append(end)
        arrivals.events.append(events)
        arrivals.tokens.append(bisect_right(lengths, characters))
    if "".join(text) != script.text(key, tokens):
        raise StreamError(f"the text of stream {key} is not the script's: {''.join(text)[:80]!r}…")
    if len(ids) != 1 or reasons != ["length"] or done != 1:
        raise StreamError(f"{len(ids)} ids, finish reasons {reasons}, {done} times [DONE]; one of each is right")
    return arrivals
