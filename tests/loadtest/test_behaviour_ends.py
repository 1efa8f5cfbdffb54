"""The benchmark's parts before servers that end their streams when they should not: every such end is counted once."""

import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count

import pytest
import trio
from trio.testing import MockClock

from triolet.loadtest.behaviour.client import CONNECT_SECONDS, Target, stream_chat
from triolet.loadtest.behaviour.crowd import probes
from triolet.loadtest.behaviour.parts import drain, isolation, slow_readers, worker_death
from triolet.loadtest.behaviour.results import (
    BehaviourReport,
    Drained,
    Isolation,
    NotMeasurable,
    SlowReaders,
    Tally,
    WorkerDeath,
)
from triolet.loadtest.behaviour.table import rows
from triolet.loadtest.client.dial import Dialer
from triolet.loadtest.process import ServerProcess

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
HONEST, FLOOD = "honest", "flood"

Answer = Callable[[trio.SocketStream, bool], Awaitable[None]]  # the flood's key or not


async def _serve(nursery: trio.Nursery, answer: Answer) -> Target:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            asked = b""
            while not asked.endswith(b"}"):  # the body too: closing on unread bytes would reset the connection
                asked += await stream.receive_some()
            try:
                await stream.send_all(HEAD)
                await answer(stream, f"Bearer {FLOOD}".encode() in asked)
            except trio.BrokenResourceError:
                pass  # the client has left

    (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
    port = listener.socket.getsockname()[1]
    return Target(url=f"http://127.0.0.1:{port}", model="m", keys=(HONEST, FLOOD))


async def test_a_flood_that_the_server_cuts_is_counted(nursery: trio.Nursery) -> None:
    cuts, many = count(1), trio.Event()
    last = 0

    async def cut_the_flood(stream: trio.SocketStream, flood: bool) -> None:
        nonlocal last
        await stream.send_all(TOKEN * 3)
        if not flood:
            await many.wait() if last else None  # `alone` comes before the flood
            await stream.send_all(DONE)
        elif (last := next(cuts)) >= 20:
            many.set()

    target, tally = await _serve(nursery, cut_the_flood), Tally()
    result = await isolation(target, await probes(target, 2, 30.0), tally, flood=8, max_tokens=50, patience=30.0)
    assert isinstance(result, Isolation)
    assert (tally.done, result.probes_failed) == (2, 0)
    assert 20 - 8 <= tally.without <= last  # the flood's clients may each have left one
    nursery.cancel_scope.cancel()


async def test_what_runs_when_the_flood_is_stopped_was_left_by_its_client(nursery: trio.Nursery) -> None:
    async def hold_the_flood(stream: trio.SocketStream, flood: bool) -> None:
        await stream.send_all(TOKEN)
        if flood:
            await trio.sleep_forever()
        await stream.send_all(DONE)

    target, tally = await _serve(nursery, hold_the_flood), Tally()
    await isolation(target, await probes(target, 2, 30.0), tally, flood=8, max_tokens=50, patience=30.0)
    assert (tally.done, tally.without) == (2, 0)
    nursery.cancel_scope.cancel()


async def _beside_slow_readers(target: Target, tally: Tally) -> SlowReaders:
    process = ServerProcess(os.getpid())
    found = await slow_readers(target, process, 0.1, tally, readers=2, max_tokens=10, seconds=0.2)
    assert isinstance(found, SlowReaders)
    return found


async def test_an_answer_refused_beside_slow_readers_is_a_failure(nursery: trio.Nursery) -> None:
    async def refuse_the_honest(stream: trio.SocketStream, flood: bool) -> None:
        await stream.send_all(TOKEN if flood else b'data: {"error":{"message":"full"}}\n\n')

    tally = Tally()
    found = await _beside_slow_readers(await _serve(nursery, refuse_the_honest), tally)
    assert found.probes_failed == found.probes == tally.error_events >= 1
    report = BehaviourReport(name="s", url="", command=None, results={"slow readers": found}, tally=tally)
    assert f"no answer, {found.probes} of {found.probes} not answered" in dict(rows(report))["… an answer beside them"]
    nursery.cancel_scope.cancel()


async def test_an_answer_that_takes_too_long_was_left_and_not_cut(nursery: trio.Nursery) -> None:
    async def hold(stream: trio.SocketStream, _flood: bool) -> None:
        await stream.send_all(TOKEN)
        await trio.sleep_forever()

    tally = Tally()
    found = await _beside_slow_readers(await _serve(nursery, hold), tally)
    assert (found.probes_failed, found.probe_seconds, tally.without) == (found.probes, None, 0)
    assert found.probes >= 1
    nursery.cancel_scope.cancel()


class _Lonely(ServerProcess):
    """A process that is its own model's."""

    def largest_child(self) -> int:
        return self.pid


@pytest.fixture
def process() -> Iterator[ServerProcess]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield _Lonely(child.pid, child)
        child.kill()


@pytest.mark.parametrize("part", [worker_death, drain])
@pytest.mark.parametrize("terminal", [DONE, b""])
async def test_nothing_is_killed_when_the_answers_have_ended(
    nursery: trio.Nursery,
    process: ServerProcess,
    part: Callable[..., Awaitable[WorkerDeath | Drained | NotMeasurable]],
    terminal: bytes,
) -> None:
    """Streams that ended before would pass for streams that survived, or that the kill had cut."""

    async def whole(stream: trio.SocketStream, _flood: bool) -> None:
        await stream.send_all(TOKEN * 3 + terminal)

    tally = Tally()
    result = await part(await _serve(nursery, whole), process, tally, streams=1, max_tokens=1000, patience=30.0)
    assert isinstance(result, NotMeasurable)
    assert "1 of 1 answers had ended before anything was done" in result.because
    assert (tally.done, tally.without) == ((1, 0) if terminal else (0, 1))
    assert process.process is not None
    assert process.process.poll() is None
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("events", "end", "text"),
    [
        (DONE, "done", ""),
        (b"data: [DONE] \n\n", "done", ""),
        (TOKEN + b"data: [DONE]\n", "done", "x"),
        (TOKEN + b"data: [DO", "no terminal event", "x"),
        (TOKEN + b"event: error\ndata: {no JSON\n\n", "error event", "x"),
        (TOKEN + b"event: error\ndata: {no JSON\n\n" + DONE, "error event", "x"),
        (TOKEN + b'data: {"error":{"message":"full"}}\n', "error event", "x"),
        (TOKEN + b"data: {no JSON\n\n" + DONE, "no terminal event", "x"),
        (b'data: {"choices":[{"text":7,"delta":{"content":"x"}}],"usage":[1]}\n\n' + DONE, "done", "x"),
        (b'data: {"choices":null,"usage":{"prompt_tokens":"3"}}\n\n' + TOKEN + DONE, "done", "x"),
    ],
)
async def test_an_end_is_what_the_server_sent(nursery: trio.Nursery, events: bytes, end: str, text: str) -> None:
    async def send(stream: trio.SocketStream, _flood: bool) -> None:
        await stream.send_all(events)

    stream = await stream_chat(await _serve(nursery, send), "q", 3)
    assert (stream.end, stream.text, stream.over) == (end, text, True)
    nursery.cancel_scope.cancel()


async def test_a_server_that_takes_no_connection_is_not_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_dialer: Dialer, _slow: bool) -> trio.abc.Stream:
        await trio.sleep_forever()

    monkeypatch.setattr(Dialer, "connect", never)
    target = Target(url="http://127.0.0.1:1", model="m")
    stream = await stream_chat(target, "q", 3)
    assert stream.end == "no connection"
    assert trio.current_time() - stream.began == pytest.approx(CONNECT_SECONDS)
    assert "within 10 s" in stream.detail
    (left,) = await probes(target, 2, 1.0)  # cancelled while it connects
    assert (left.end, left.over) == ("no connection", False)


async def test_a_connection_that_is_cut_before_an_answer_has_no_terminal_event(nursery: trio.Nursery) -> None:
    async def cut(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, cut, 0, host="127.0.0.1"))
    port = listener.socket.getsockname()[1]
    stream = await stream_chat(Target(url=f"http://127.0.0.1:{port}", model="m"), "q", 3)
    assert stream.end == "no terminal event"
    nursery.cancel_scope.cancel()
