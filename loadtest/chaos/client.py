"""The streams of a chaos run: each client asks its own question again and again, and notes when tokens come."""

import json
import random
from collections.abc import Callable
from contextlib import suppress

import trio
from msgspec import Struct

from ..client.body import EventStream
from ..client.chunk import PATHS, decode_chunk
from ..client.client import HttpClient
from ..client.ending import Fault

DONE = b"[DONE]"


class Stream(Struct, kw_only=True):
    """One answer as its reader saw it."""

    client: int
    text: str = ""
    ends: int = 0  # terminal events
    error: str = ""


def question(client: int, tokens: int) -> bytes:
    """Drawn with the client's seed, so that the answer is the same each time."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me a short story about number {client}."}],
        "seed": client,
        "temperature": 1.2,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    return json.dumps(body).encode()


async def read_stream(client: HttpClient, number: int, tokens: int, on_token: Callable[[], None]) -> Stream:
    """Ask, and read to the end. What goes wrong is in `error`."""
    stream, events = Stream(client=number), EventStream()
    try:
        async with client.request("POST", PATHS["chat"], question(number, tokens)) as (response, _sent, _reused):
            if response.head.status != 200:
                stream.error = f"status {response.head.status}: {(await response.read())[:200]!r}"
                return stream
            while data := await response.read():
                for event in events.feed(data):
                    if event == DONE:
                        stream.ends += 1
                        continue
                    chunk = decode_chunk(event)
                    if refusal := chunk.refusal():
                        stream.ends, stream.error = stream.ends + 1, refusal
                    if text := chunk.text():
                        stream.text += text
                        on_token()
    except Fault as fault:
        stream.error = str(fault)
    return stream


async def leave_early(
    client: HttpClient, rng: random.Random, tokens: int, first: int, on_left: Callable[[], None]
) -> None:
    """Ask for ever, with questions from number `first` on, and leave somewhere between the head and the end."""
    while True:
        with trio.move_on_after(rng.expovariate(5.0)) as patience, suppress(Fault):
            await read_stream(client, first + rng.randrange(1000), tokens, lambda: None)
        if patience.cancelled_caught:
            on_left()
