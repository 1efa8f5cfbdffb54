"""The parts of the benchmark. Each does to a server what clients and machines do, and observes the effect."""

import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from ..client.request import request_bytes
from ..process import ServerProcess
from .client import CHAT, ChatStream, Target, body_of, dial, stream_chat
from .crowd import Crowd, crowd, duration, middle, probe, probes
from .gauge import Gauge
from .results import Drained, Isolation, Leaving, NotMeasurable, SlowReaders, Tally, WorkerDeath

_SETTLE_SECONDS: Final = 15.0  # limit for a server's memory to stop growing
_STILL_BYTES: Final = 1 << 18  # growth in half a second below this counts as none
_SLOWED: Final = 1.3  # streams must slow a probe by this factor, or it cannot show that they are gone


async def leaving(
    target: Target, gauge: Gauge | None, alone: float | None, *, streams: int, max_tokens: int, patience: float
) -> Leaving | NotMeasurable:
    """All clients leave in mid-answer. `alone`: seconds of a probe when nothing else runs."""
    async with crowd(target, streams, max_tokens, patience) as running:
        if len(running.begun) < streams:
            return _not_begun(running.streams)
        busy = None
        if gauge is None:
            # The faster of two, so that another process's burst does not count as the streams' cost.
            took = [duration(await probe(target, patience)) for _ in range(2)]
            busy = min((seconds for seconds in took if seconds is not None), default=None)
        elif await gauge.read() < streams:
            return NotMeasurable(because=f"{gauge.where} counts fewer requests than the {streams} streams that run")
        early = running.ended_early()
        running.leave()
        if early is not None:
            return NotMeasurable(because=f"{early}: too short, or cut for the probe")
    left = trio.current_time()
    if gauge is not None:
        seconds = await _until_idle(gauge, patience)
        return Leaving(streams=streams, seconds=seconds, patience=patience, seen_by=gauge.where)
    if alone is None or busy is None:
        return NotMeasurable(because="a probe beside the streams was not answered, and the server has no count of them")
    if busy < _SLOWED * alone:
        because = f"{streams} streams slow a probe from {alone:.2f} to {busy:.2f} s only, and the server has no count"
        return NotMeasurable(because=because)
    seen_by = "a probe that is fast again"
    while (now := trio.current_time()) - left < patience:
        again = duration(await probe(target, patience))
        if again is not None and again < (alone + busy) / 2:
            return Leaving(streams=streams, seconds=now - left, patience=patience, seen_by=seen_by)
    return Leaving(streams=streams, seconds=None, patience=patience, seen_by=seen_by)


async def _until_idle(gauge: Gauge, patience: float) -> float | None:
    began = trio.current_time()
    while trio.current_time() - began < patience:
        if not await gauge.read():
            return trio.current_time() - began
        await trio.sleep(0.002)
    return None


async def slow_readers(
    target: Target,
    process: ServerProcess | None,
    alone: float | None,
    tally: Tally,
    *,
    readers: int,
    max_tokens: int,
    seconds: float,
) -> SlowReaders | NotMeasurable:
    """Clients ask for long answers and read nothing."""
    if process is None:
        return NotMeasurable(because="the memory of a process unknown here: give --command or --pid")
    before = await _settled_bytes(process)
    unread = [await _ask_and_not_read(target, f"Count for ever. ({number})", max_tokens) for number in range(readers)]
    try:
        beside: list[ChatStream] = []
        largest, until = before, trio.current_time() + seconds
        while trio.current_time() < until:
            beside.append(await probe(target, seconds))
            largest = max(largest, process.resident_bytes())
            await trio.sleep(0.1)
        tally.count(*beside)
    finally:
        for stream in unread:
            await trio.aclose_forcefully(stream)
    return SlowReaders(
        readers=readers,
        grown_bytes_each=(largest - before) / readers,
        probe_alone_seconds=alone,
        probe_seconds=middle([duration(stream) for stream in beside]),
        probes=len(beside),
        probes_failed=sum(duration(stream) is None for stream in beside),
    )


async def _settled_bytes(process: ServerProcess) -> int:
    """Memory after it stops growing by itself; a worker may touch its KV cache's pages after its start."""
    before = process.resident_bytes()
    with trio.move_on_after(_SETTLE_SECONDS):
        while True:
            await trio.sleep(0.5)
            now = process.resident_bytes()
            if now - before < _STILL_BYTES:
                return now
            before = now
    return before


async def _ask_and_not_read(target: Target, prompt: str, max_tokens: int) -> trio.abc.Stream:
    stream = await dial(target.endpoint, slow=True)
    body, host = body_of(target, prompt, max_tokens), target.endpoint.authority
    await stream.send_all(request_bytes("POST", CHAT, body, host=host, key=target.key(flood=True)))
    return stream


async def isolation(
    target: Target, alone: Sequence[ChatStream], tally: Tally, *, flood: int, max_tokens: int, patience: float
) -> Isolation:
    """One tenant floods the server; another asks now and then, as in `alone`."""
    flooding: list[ChatStream] = []

    async def keep_asking(number: int) -> None:
        count = 0
        while True:
            stream = ChatStream()
            flooding.append(stream)
            await stream_chat(target, f"Tell me about number {number}.{count}.", max_tokens, flood=True, stream=stream)
            count += 1
            if stream.end in ("refused", "no connection"):
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for number in range(flood):
            nursery.start_soon(keep_asking, number)
        with trio.move_on_after(10):
            while not any(stream.token_times for stream in flooding):  # noqa: ASYNC110 - of many
                await trio.sleep(0.01)
        beside = await probes(target, len(alone), patience)
        # When the flood stops, its client leaves the running streams; the server ended all others.
        over = [stream for stream in flooding if stream.over or stream.end in ("done", "error event", "refused")]
        nursery.cancel_scope.cancel()
    tally.count(*over, *beside)
    answered = [stream for stream in beside if stream.token_times]
    return Isolation(
        flood_streams=flood,
        separate_keys=len(set(target.keys)) > 1,
        flood_answered=sum(stream.end == "done" for stream in over),
        flood_refused=sum(stream.end == "refused" for stream in over),
        first_token_alone=middle([stream.first_token for stream in alone]),
        first_token_flooded=middle([stream.first_token for stream in beside]),
        gap_alone=middle([gap for stream in alone for gap in stream.gaps]),
        gap_flooded=middle([gap for stream in beside for gap in stream.gaps]),
        probes_failed=len(beside) - len(answered),
    )


async def worker_death(
    target: Target, process: ServerProcess | None, tally: Tally, *, streams: int, max_tokens: int, patience: float
) -> WorkerDeath | NotMeasurable:
    """The process with the model is killed while it answers."""
    if process is None:
        return NotMeasurable(because="there is no process to kill: give --command or --pid")
    child = process.largest_child()
    if child is None:
        return NotMeasurable(because="the server is one process: when the model's process dies, the server has died")
    recovered: float | None = None
    async with crowd(target, streams, max_tokens, patience) as running:
        if len(running.begun) < streams:
            return _not_begun(running.streams)
        if (early := running.ended_early()) is not None:
            return _left_alone(running, tally, f"{early}: ask for longer ones (--answer-tokens)")
        os.kill(child, signal.SIGKILL)
        killed = trio.current_time()
        while trio.current_time() - killed < patience:
            answer = await probe(target, patience)
            if answer.token_times:
                recovered = trio.current_time() - killed
                break
            await trio.sleep(0.05)
    tally.count(*running.streams)
    return WorkerDeath(
        streams=streams,
        went_on=sum(stream.end == "done" for stream in running.streams),
        told=sum(stream.end == "error event" for stream in running.streams),
        cut=sum(stream.end in ("no terminal event", "no connection") for stream in running.streams),
        recovered_seconds=recovered,
        patience=patience,
    )


async def drain(
    target: Target, process: ServerProcess | None, tally: Tally, *, streams: int, max_tokens: int, patience: float
) -> Drained | NotMeasurable:
    """SIGTERM while streams run, which ends the server."""
    if process is None or process.process is None:
        return NotMeasurable(because="a server is only told to end that this benchmark started: give --command")
    exited: list[tuple[float, int | None]] = []

    async def wait(since: float) -> None:
        code = await process.wait(patience)
        exited.append((trio.current_time() - since, code))

    async with trio.open_nursery() as nursery, crowd(target, streams, max_tokens, patience) as running:
        if len(running.begun) < streams:
            return _not_begun(running.streams)
        if (early := running.ended_early()) is not None:
            return _left_alone(running, tally, early)
        process.terminate()
        nursery.start_soon(partial(wait, trio.current_time()))
    tally.count(*running.streams)
    seconds, code = exited[0]
    return Drained(
        streams=streams,
        finished=sum(stream.end == "done" for stream in running.streams),
        told=sum(stream.end == "error event" for stream in running.streams),
        cut=sum(stream.end in ("no terminal event", "no connection") for stream in running.streams),
        exit_seconds=None if code is None else seconds,
        exit_code=code,
        patience=patience,
    )


def _left_alone(running: Crowd, tally: Tally, early: str) -> NotMeasurable:
    """Nothing was done to the server, but how its streams ended still counts."""
    running.leave()
    tally.count(*running.streams)
    return NotMeasurable(because=early)


def _not_begun(streams: list[ChatStream]) -> NotMeasurable:
    ends = sorted({f"{stream.end} {stream.detail}".strip() for stream in streams})
    begun = sum(bool(stream.token_times) for stream in streams)
    because = f"only {begun} of {len(streams)} streams ran at once ({'; '.join(ends)[:300]})"
    return NotMeasurable(because=because, ran_at_once=begun)
