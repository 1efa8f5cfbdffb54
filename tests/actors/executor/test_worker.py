"""The life of worker processes: they end with the front, and their streams outlive them."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio

from triolet.actors.engine import EngineLoadError, run_engine
from triolet.actors.observe.metrics import ledger_of
from triolet.actors.supervisor import worker_status
from triolet.actors.supervisor.child_process import start_worker
from triolet.actors.supervisor.link import Link
from triolet.actors.supervisor.restart_budget import RESTARTS
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Failed, Finished, Token
from triolet.protocol.requests import TokenPrompt
from triolet.protocol.settings import EngineSettings
from triolet.protocol.steps import (
    Chunk,
    FromWorker,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    Step,
    StepFailed,
)

from ..engine_house import MODEL, Answer, chat, read_all, running, settings_for, submit, until, until_balanced

STREAMS = 16
TOKENS = 48


def alive(pid: int) -> bool:
    """Whether it runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_every_stream_goes_on_to_the_text_it_would_have_had(tmp_path: Path) -> None:
    """Greedy and seeded streams, killed in mid-answer, against the same requests undisturbed."""
    folder = tmp_path / "model"  # of our own: the second worker must load what the first one did
    shutil.copytree(MODEL, folder)
    async with running(settings_for(model=str(folder), quantize="int8")) as engine:

        async def run(kill: bool) -> list[str]:
            outboxes = [
                submit(
                    engine,
                    chat(f"Tell me a story about the number {place}."),
                    seed=place if place % 2 else None,
                    max_tokens=TOKENS,
                    ignore_eos=True,
                    cache_salt=str(kill),  # the second run must compute its prompts, too
                )
                for place in range(STREAMS)
            ]
            answers = [Answer() for _ in outboxes]
            tokens = 0

            def count(event: object) -> None:
                nonlocal tokens
                tokens += event.tokens if isinstance(event, Token) else 0

            async with trio.open_nursery() as nursery:
                for answer, outbox in zip(answers, outboxes, strict=True):
                    nursery.start_soon(answer.read, outbox, count)
                if kill:
                    assert engine.ready is not None
                    await until(lambda: tokens > STREAMS * TOKENS // 3, "a third of the text is there")
                    os.kill(engine.ready.pid, signal.SIGKILL)
            assert all(answer.finished.reason == "length" for answer in answers)
            assert all(answer.finished.usage.completion_tokens == TOKENS for answer in answers)
            return [answer.text() for answer in answers]

        undisturbed = await run(kill=False)
        first_pid = engine.ready.pid if engine.ready else 0
        assert await run(kill=True) == undisturbed
        assert engine.scheduler_statistics().totals.worker_losses == 1
        assert engine.ready is not None
        assert engine.ready.pid != first_pid
        assert (await engine.health()).ready
        await until_balanced(engine)


async def test_who_waits_for_the_next_worker_is_told_why_and_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "triolet.supervisor")
    async with running(settings_for()) as engine:
        assert engine.ready is not None
        first = engine.ready.pid
        stages: list[str] = []

        def note() -> None:
            if (loading := engine.gateway.worker.loading) is not None:
                stages.append(loading.stage)

        engine.gateway.on_news.add(note)
        outbox = submit(engine, "Hello", max_tokens=1000, ignore_eos=True)
        await outbox.drain()
        os.kill(first, signal.SIGKILL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Answer().read, outbox)
            while True:
                explained, health = await engine.explain(outbox.id, ""), await engine.health()
                assert explained is not None
                reason = explained.blocked_on.reason if explained.blocked_on else None
                if reason is not None and "starting the worker" in reason:
                    break
            assert "SIGKILL" in reason
            assert (health.ready, health.status, health.reason) == (False, "restarting", reason)
            assert health.loading is not None
        assert "packing weights" in stages
        assert (await engine.health()).loading is None
        assert "ready again after" in caplog.messages[-1]
        assert f"worker {engine.ready.pid}" in caplog.messages[-1]


async def test_when_no_worker_comes_back_every_request_is_answered(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    async with running(settings_for(model=str(folder))) as engine:
        streams = [submit(engine, "Hello", max_tokens=1000, ignore_eos=True) for _ in range(2)]
        await streams[0].drain()
        assert engine.ready is not None
        (folder / "model.safetensors").rename(folder / "moved away")
        os.kill(engine.ready.pid, signal.SIGKILL)
        answers = await read_all(streams)
        for answer in answers:
            assert isinstance(answer.end, Failed)
            assert answer.end.code == "engine_unavailable"
            assert f"{RESTARTS} restarts" in answer.end.message
        assert (await engine.health()).status == "failed"
        with pytest.raises(ApiError) as caught:
            submit(engine, "Hello")
        assert caught.value.status == 503
        await until_balanced(engine)
        assert ledger_of(await engine.report()).children == 0


async def test_when_no_process_can_be_started_it_counts_as_a_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings_for()) as engine:
        stream = submit(engine, "Hello", max_tokens=1000, ignore_eos=True)
        await stream.drain()
        assert engine.ready is not None
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        os.kill(engine.ready.pid, signal.SIGKILL)
        (answer,) = await read_all([stream])
        assert isinstance(answer.end, Failed)
        assert (answer.end.code, "cannot be started" in answer.end.message) == ("engine_unavailable", True)
        with pytest.raises(EngineLoadError, match="cannot be started"):
            await run_engine(settings_for())


async def test_a_step_too_large_for_the_link_costs_its_request_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(settings_for()) as engine:
        monkeypatch.setattr("triolet.actors.supervisor.frame.MAX_FRAME", 2000)  # of the front; the worker keeps its own
        (large,) = await read_all([submit(engine, TokenPrompt(token_ids=(300,) * 1500))])
        assert isinstance(large.end, Failed)
        assert large.end.code == "engine_error"
        (small,) = await read_all([submit(engine, "Hello")])
        assert isinstance(small.end, Finished)


async def test_the_end_of_the_socket_ends_the_worker() -> None:
    process = start_worker(EngineSettings(model="/nowhere"))
    link = Link(process.stream, msgspec.msgpack.Decoder[FromWorker](FromWorker))
    with trio.fail_after(60):
        answer = await link.receive()
    assert isinstance(answer, LoadFailed)
    assert await process.end() == "the worker process exited with status 0"

    idle = start_worker(EngineSettings(model="/nowhere"))
    await trio.aclose_forcefully(idle.stream)  # closed before it said anything
    await until(lambda: not alive(idle.pid), "the worker is gone")
    assert await idle.end() == "the worker process exited with status 0"


async def test_a_worker_answers_pings_and_leaves_after_a_step_that_raises() -> None:
    process = start_worker(settings_for().engine)
    link = Link(process.stream, msgspec.msgpack.Decoder[FromWorker](FromWorker))
    await link.send(Ping())
    received: list[FromWorker] = []
    with trio.fail_after(120):
        while not (received and isinstance(received[-1], Ready)):
            received.append(await link.receive())
        assert Pong() in received  # its event loop answers while the model is loaded in the thread
        await link.send(Step(step=1, chunks=(Chunk(sequence=77, start=0, count=1),)))
        failed = await link.receive()
    assert isinstance(failed, StepFailed)
    assert "77" in failed.message
    with pytest.raises(trio.EndOfChannel):
        await link.receive()
    assert await process.end() == "the worker process exited with status 1"


async def test_a_worker_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    async with running(settings_for(model=str(folder))) as engine:
        whole = await Answer().read(submit(engine, "Hello", max_tokens=40, ignore_eos=True))
        assert engine.ready is not None
        hung = engine.ready.pid
        monkeypatch.setattr(worker_status, "KILL_AFTER", 5.0)
        stream = submit(engine, "Hello", max_tokens=40, ignore_eos=True)
        os.kill(hung, signal.SIGSTOP)
        answer = await Answer().read(stream)
        assert answer.text() == whole.text()
        assert engine.ready.pid != hung
        assert not alive(hung)


FRONT = """
import sys, trio
from functools import partial
from triolet.actors.observe.metrics import ledger_of
from triolet.actors.engine import run_engine
from triolet.protocol.settings import EngineSettings, ServeSettings

async def main():
    settings = ServeSettings(engine=EngineSettings(model=sys.argv[1], threads=1, kv_cache_memory=32 << 20))
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(partial(run_engine, settings))
        heavy = {"torch", "numba", "transformers"} & set(sys.modules)
        print(engine.ready.pid, sorted(heavy), flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_killed_front_leaves_no_worker_behind(stopped: bool) -> None:
    """Nor one that is stopped and cannot see its socket: the kernel kills it. The front imports no heavy library."""
    command = [sys.executable, "-c", FRONT, MODEL]
    front = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it takes a moment
    assert front.stdout is not None
    try:
        pid, _, heavy = (await trio.to_thread.run_sync(front.stdout.readline)).strip().partition(" ")
        assert heavy == "[]"
        assert alive(int(pid))
        if stopped:
            os.kill(int(pid), signal.SIGSTOP)
    finally:
        front.kill()
        front.wait()
        front.stdout.close()
    await until(lambda: not alive(int(pid)), "the worker is gone")
