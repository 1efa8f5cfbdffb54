"""Streams over SSE from one server: `python -m triolet.loadtest.device.gpu_streams`, a process beside it.

Standard input gives a line of JSON, the load; it answers "ready", begins on the next line, and prints for every stream
when how many tokens had come. Tokens are counted as words in the raw bytes (random_model.py) once all is read: reading
hundreds of streams must not cost what parsing them would.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from triolet.loadtest.client.reader import Pipe, read_streams
from triolet.loadtest.client.request import post_json
from triolet.loadtest.device.random_model import WORD

END = b"data: [DONE]"
DEADLINE_SECONDS = 150.0  # below what the serving part gives a case


@dataclass(frozen=True, slots=True)
class StreamedLoad:
    port: int
    first: int  # number of the first stream of this process: prompts differ
    streams: int
    prompt_tokens: int
    output_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of one stream. Times are of the machine's monotonic clock, which processes share."""

    arrivals: list[tuple[float, int]]  # time, tokens in this piece
    frames: int
    fault: str


def request_of(load: StreamedLoad, number: int) -> bytes:
    draw = random.Random(number)
    fields = {
        "prompt": [draw.randrange(load.vocab_size) for _ in range(load.prompt_tokens)],
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    # A refused request must end its connection: the reader waits for END or for that.
    return post_json("/v1/completions", fields).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


def streamed(data: bytes, reads: Sequence[tuple[float, int]], cut: str = "") -> Streamed:
    """`reads`: when, and how many bytes had come by then. A word that two reads cut counts in the second.

    `cut`: why reading stopped before every stream had ended.
    """
    if not data.startswith(b"HTTP/1.1 200"):
        return Streamed([], 0, data.decode(errors="replace")[:300] or cut or "the connection ended without an answer")
    word, arrivals, before = WORD.encode(), list[tuple[float, int]](), 0
    for when, size in reads:
        if tokens := data.count(word, max(0, before - len(word) + 1), size):
            arrivals.append((when, tokens))
        before = size
    return Streamed(arrivals, data.count(b"data: "), "" if END in data else cut or "the stream ended before [DONE]")


def main() -> None:
    load = StreamedLoad(**json.loads(sys.stdin.readline()))
    pipes = [Pipe(load.port, request_of(load, load.first + index), END) for index in range(load.streams)]
    print("ready", flush=True)
    if sys.stdin.readline():
        cut = ""
        try:
            read_streams(pipes, keep_times=True, deadline_seconds=DEADLINE_SECONDS)
        except (OSError, RuntimeError) as error:  # one reset connection, or the deadline: what came is still told
            cut = f"reading stopped: {error}"
        print(json.dumps([asdict(streamed(pipe.received(), pipe.reads, cut)) for pipe in pipes]), flush=True)


if __name__ == "__main__":
    main()
