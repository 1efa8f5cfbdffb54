"""The maximum streaming rate of a server with one core: many streams at full speed."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from ..client.reader import LAST_CHUNK, Pipe, read_streams
from ..client.request import request_bytes
from ..process import ServerProcess
from .check_sse import Arrivals, check_raw, check_stream
from .check_websocket import check_socket
from .effort import Effort, SteadyPart, effort_between
from .raw_server import EVENT
from .requests import completion, create_frame, handshake, key_of_stream
from .script import Script

STREAMS: Final = 64  # unless another number is asked for
WEBSOCKET_END: Final = b'"type":"finished"'
_EVENT_BYTES: Final = 220  # per chunk with one event; the initial guess for buffer sizes
_PROBE: Final = 1000  # events per stream in the run that finds the rate: enough that all begin before one ends


class Rate(Struct, frozen=True, kw_only=True):
    """One steady run."""

    events_s: float
    tokens_s: float
    events: int
    server_us_per_event: float
    tokens_per_event: float
    events_per_read: float  # above 1, the client lagged or several events came in one write
    events_per_write: float  # per chunk of the body, or WebSocket frame
    effort: Effort


Check = Callable[[bytes, int, int], Arrivals]  # bytes, stream, tokens
Open = Callable[[int, int, int], Pipe]  # stream, tokens, bytes expected


def flood(
    server: ServerProcess, opening: Open, check: Check, *, seconds: float, streams: int, tokens_per_event: int = 1
) -> Rate:
    """A short run to find the rate, then one of the given seconds. Every stream of both is checked."""
    probe = _run(server, opening, check, streams, _PROBE * tokens_per_event, settle=0.0)
    tokens = max(_PROBE * tokens_per_event, int(probe.tokens_s * seconds / streams))
    return _run(server, opening, check, streams, tokens, settle=min(0.3, seconds / 8))


def _run(server: ServerProcess, opening: Open, check: Check, streams: int, tokens: int, settle: float) -> Rate:
    pipes = [opening(stream, tokens, tokens * _EVENT_BYTES) for stream in range(streams)]
    try:
        steady = SteadyPart(pipes, server.cpu_time, settle)
        reads = read_streams(pipes, steady)
        return rate_of(steady, reads, [check(pipe.received(), stream, tokens) for stream, pipe in enumerate(pipes)])
    finally:
        for pipe in pipes:
            pipe.close()


def rate_of(steady: SteadyPart, reads: int, arrivals: Sequence[Arrivals]) -> Rate:
    """The figures of the steady part."""
    first, last = steady.ends()
    effort = effort_between(first, last)
    before = [arrival.at(size) for arrival, size in zip(arrivals, first.sizes, strict=True)]
    after = [arrival.at(size) for arrival, size in zip(arrivals, last.sizes, strict=True)]
    events = sum(events for events, _ in after) - sum(events for events, _ in before)
    tokens = sum(tokens for _, tokens in after) - sum(tokens for _, tokens in before)
    total = sum(arrival.events[-1] for arrival in arrivals)
    return Rate(
        events_s=events / effort.seconds,
        tokens_s=tokens / effort.seconds,
        events=events,
        server_us_per_event=(last.cpu.server - first.cpu.server) / max(1, events) * 1e6,
        tokens_per_event=tokens / max(1, events),
        events_per_read=total / max(1, reads),
        events_per_write=total / sum(len(arrival.offsets) for arrival in arrivals),
        effort=effort,
    )


def raw_rate(server: ServerProcess, seconds: float, streams: int) -> Rate:
    def opening(stream: int, tokens: int, size: int) -> Pipe:
        return Pipe(server.port, request_bytes("GET", f"/{tokens}"), LAST_CHUNK, size)

    def check(data: bytes, stream: int, events: int) -> Arrivals:
        del stream
        return check_raw(data, EVENT, events)

    return flood(server, opening, check, seconds=seconds, streams=streams)


def sse_rate(
    server: ServerProcess, script: Script, seconds: float, streams: int = STREAMS, tokens_per_event: int = 1
) -> Rate:
    def opening(stream: int, tokens: int, size: int) -> Pipe:
        return Pipe(server.port, completion(stream, tokens), LAST_CHUNK, size)

    return flood(
        server, opening, sse_check(script), seconds=seconds, streams=streams, tokens_per_event=tokens_per_event
    )


def websocket_rate(server: ServerProcess, script: Script, seconds: float, streams: int) -> Rate:
    def opening(stream: int, tokens: int, size: int) -> Pipe:
        return websocket_pipe(server.port, stream, tokens, size)

    def check(data: bytes, stream: int, tokens: int) -> Arrivals:
        return check_socket(data, script, key_of_stream(stream), tokens)

    return flood(server, opening, check, seconds=seconds, streams=streams)


def websocket_pipe(port: int, stream: int, tokens: int, size: int) -> Pipe:
    """A socket after its handshake; the handshake's answer is kept with the other received bytes."""
    pipe = Pipe(port, create_frame(stream, tokens), WEBSOCKET_END, size)
    pipe.socket.sendall(handshake())
    while b"\r\n\r\n" not in pipe.data[: pipe.size]:
        got = pipe.socket.recv_into(pipe.view[pipe.size :], 4096)
        if not got:
            raise RuntimeError(f"the handshake failed: {pipe.received()[:200]!r}")
        pipe.size = pipe.before = pipe.size + got
    return pipe


def sse_check(script: Script) -> Check:
    return lambda data, stream, tokens: check_stream(data, script, key_of_stream(stream), tokens)
