"""The cost of a steady load and the lateness of its tokens: streams of 30 tokens/s, as from a model on a GPU."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from ..client.reader import LAST_CHUNK, Pipe, read_streams
from ..process import ServerProcess
from ..serve.quantiles import quantile
from .check_sse import Arrivals, check_stream
from .effort import Effort, SteadyPart, effort_between
from .requests import completion, key_of_stream
from .script import Script

TOKENS_S: Final = 30.0
INTERVAL: Final = 1 / TOKENS_S
_EVENT_BYTES: Final = 220


class Paced(Struct, frozen=True, kw_only=True):
    """Streams at 30 tokens/s each. Gaps are between tokens of one stream, as the client saw them."""

    streams: int
    tokens_s: float  # per stream
    cpu_ms_per_1000_tokens: float
    gap_p50_intervals: float
    gap_p99_intervals: float
    gap_worst_intervals: float
    late_share: float  # share of tokens over 1.5 intervals after the previous one
    effort: Effort


def paced(server: ServerProcess, script: Script, streams: int, seconds: float) -> Paced:
    """The server's worker must keep the beat of INTERVAL."""
    tokens = int(seconds * TOKENS_S)
    pipes = [
        Pipe(server.port, completion(stream, tokens), LAST_CHUNK, tokens * _EVENT_BYTES) for stream in range(streams)
    ]
    try:
        steady = SteadyPart(pipes, server.cpu_time, settle_seconds=min(1.0, seconds / 5))
        read_streams(pipes, steady, keep_times=True)
        arrivals = [
            check_stream(pipe.received(), script, key_of_stream(stream), tokens) for stream, pipe in enumerate(pipes)
        ]
    finally:
        for pipe in pipes:
            pipe.close()
    first, last = steady.ends()
    effort = effort_between(first, last)
    gaps: list[float] = []
    for pipe, arrival in zip(pipes, arrivals, strict=True):
        gaps += gaps_of(pipe.reads, arrival, first.time, last.time)
    gaps.sort()
    moved = sum(
        arrival.at(after)[1] - arrival.at(before)[1]
        for arrival, before, after in zip(arrivals, first.sizes, last.sizes, strict=True)
    )
    cpu = last.cpu.server - first.cpu.server
    return Paced(
        streams=streams,
        tokens_s=moved / effort.seconds / streams,
        cpu_ms_per_1000_tokens=cpu * 1e6 / moved,
        gap_p50_intervals=quantile(gaps, 0.5) / INTERVAL,
        gap_p99_intervals=quantile(gaps, 0.99) / INTERVAL,
        gap_worst_intervals=gaps[-1] / INTERVAL,
        late_share=sum(gap > 1.5 * INTERVAL for gap in gaps) / len(gaps),
        effort=effort,
    )


def gaps_of(reads: Sequence[tuple[float, int]], arrivals: Arrivals, since: float, until: float) -> list[float]:
    """Seconds between neighbouring tokens of a stream, timed by the read that completed each."""
    times: list[float] = []
    known = 0
    for time, size in reads:
        _, tokens = arrivals.at(size)
        if since <= time <= until:
            times += [time] * (tokens - known)
        known = tokens
    return [later - earlier for earlier, later in pairwise(times)]
