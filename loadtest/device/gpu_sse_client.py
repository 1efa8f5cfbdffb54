"""Streams over SSE from one server: `python -m triolet.loadtest.device.gpu_sse_client`, a process beside it.

Standard input gives a line of JSON, the load; it answers "ready", begins on the next line, and prints for every stream
when how many tokens had come. Tokens are counted as words in the raw bytes (`gpu_random_checkpoint`): reading hundreds
of streams must not cost what parsing them would.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field

import trio

WORD = b"word"
END = b"data: [DONE]"
RECEIVE = 65536


@dataclass(frozen=True, slots=True)
class Load:
    host: str
    port: int
    first: int  # number of the first stream of this process: prompts differ
    streams: int
    prompt_tokens: int
    output_tokens: int
    vocab_size: int


@dataclass(slots=True)
class Stream:
    """What came of one stream. Times are of the machine's monotonic clock, which processes share."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)  # time, tokens in this piece
    frames: int = 0
    fault: str = ""


def request_of(load: Load, number: int) -> bytes:
    draw = random.Random(number)
    body = json.dumps(
        {
            "prompt": [draw.randrange(load.vocab_size) for _ in range(load.prompt_tokens)],
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {load.host}:{load.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def count(data: bytes, word: bytes, before: bytes) -> int:
    """Occurrences that end in `data`, which follows `before`."""
    kept = before[len(before) - min(len(before), len(word) - 1) :]
    return (kept + data).count(word)


async def read_stream(load: Load, number: int, stream: Stream) -> None:
    try:
        connection = await trio.open_tcp_stream(load.host, load.port)
        async with connection:
            await connection.send_all(request_of(load, number))
            before, ended = b"", False
            while data := await connection.receive_some(RECEIVE):
                now = time.monotonic()
                if not before and not data.startswith(b"HTTP/1.1 200"):
                    stream.fault = data.decode(errors="replace")[:300]
                    return
                if tokens := count(data, WORD, before):
                    stream.arrivals.append((now, tokens))
                stream.frames += count(data, b"data: ", before)
                before = (before + data)[-len(END) :]
                ended = ended or END in before or END in data
            if not ended:
                stream.fault = "the stream ended before [DONE]"
    except (OSError, trio.BrokenResourceError) as error:
        stream.fault = f"{type(error).__name__}: {error}"


async def run(load: Load) -> list[Stream]:
    streams = [Stream() for _ in range(load.streams)]
    async with trio.open_nursery() as nursery:
        for index, stream in enumerate(streams):
            nursery.start_soon(read_stream, load, load.first + index, stream)
    return streams


def main() -> None:
    load = Load(**json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    if sys.stdin.readline():
        print(json.dumps([asdict(stream) for stream in trio.run(run, load)]), flush=True)


if __name__ == "__main__":
    main()
