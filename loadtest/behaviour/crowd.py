"""Several streams at once, kept running while the benchmark does something to their server."""

import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from .client import ChatStream, Target, stream_chat

TOKENS_UNDER_WAY: Final = 3  # tokens every stream must have before anything is done
START_SECONDS: Final = 30.0
_LONG: Final = "Write a very long story about a river, a bridge and the people who live there. Do not stop early."
_SHORT: Final = "What is 12 + 30?"
PROBE_TOKENS: Final = 16


class Crowd:
    """Running ChatStreams. `begun`: those that had tokens in time."""

    def __init__(self, streams: list[ChatStream], leave: trio.CancelScope) -> None:
        self.streams = streams
        self._scope = leave

    @property
    def begun(self) -> list[ChatStream]:
        return [stream for stream in self.streams if len(stream.token_times) >= TOKENS_UNDER_WAY]

    def leave(self) -> None:
        """All clients that still read close their sockets."""
        for stream in self.streams:
            _left(stream)
        self._scope.cancel()

    def ended_early(self) -> str | None:
        """Why an action on the server would not affect every stream; None while all of them run."""
        ended = [stream for stream in self.streams if _over(stream)]
        if not ended:
            return None
        ends = ", ".join(sorted({stream.end for stream in ended}))
        return (
            f"{len(ended)} of {len(self.streams)} answers had ended before anything was done to their server ({ends})"
        )


@asynccontextmanager
async def crowd(target: Target, count: int, max_tokens: int, patience: float) -> AsyncGenerator[Crowd]:
    """`count` streams, each with its first tokens. At the block's end they get `patience` to finish."""
    streams = [ChatStream() for _ in range(count)]
    async with trio.open_nursery() as nursery:
        running = Crowd(streams, nursery.cancel_scope)
        for number, stream in enumerate(streams):
            nursery.start_soon(_run, target, f"{_LONG} ({number})", max_tokens, stream)
        with trio.move_on_after(START_SECONDS):
            while len(running.begun) < count and not all(_over(stream) for stream in streams):  # noqa: ASYNC110 - of many
                await trio.sleep(0.01)
        yield running
        nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, trio.current_time() + patience)


async def _run(target: Target, prompt: str, max_tokens: int, stream: ChatStream) -> None:
    await stream_chat(target, prompt, max_tokens, stream=stream)


def _over(stream: ChatStream) -> bool:
    return stream.over or stream.end in ("done", "error event", "refused")


def _left(stream: ChatStream) -> None:
    """The client closes its socket; the server is not blamed for what is missing."""
    if not stream.over and stream.end == "no terminal event":
        stream.end = "left"


async def probe(target: Target, patience: float = START_SECONDS) -> ChatStream:
    """A short request, as an honest client sends it. It is abandoned after `patience`."""
    stream = ChatStream()
    with trio.move_on_after(patience):
        await stream_chat(target, _SHORT, PROBE_TOKENS, stream=stream)
    _left(stream)
    return stream


async def probes(target: Target, count: int, patience: float) -> list[ChatStream]:
    """Send probes one after the other until one is not answered; later ones would fail too."""
    streams: list[ChatStream] = []
    while len(streams) < count:
        streams.append(await probe(target, patience))
        if not streams[-1].token_times:
            break
    return streams


def middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def duration(stream: ChatStream) -> float | None:
    """Time to its last token; None without one, or if the client left before it."""
    return stream.token_times[-1] - stream.began if stream.token_times and stream.end != "left" else None
