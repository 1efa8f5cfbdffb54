"""The executor's thread: order, errors, and that nobody leaves while a step runs. A core of its own is the model."""

import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actors.executor.inline import run_executor
from triolet.models.stepper import PendingStep
from triolet.protocol.steps import (
    FromWorker,
    LoadFailed,
    LoadProgress,
    Ready,
    ReportProgress,
    Step,
    StepDone,
    StepFailed,
)


class Core:
    """Answers each step with its own number; step 13 raises, step 42 waits until it may go on."""

    def __init__(self, ready: Ready | LoadFailed) -> None:
        self.answer = ready
        self.threads: set[int] = set()
        self.running = threading.Event()
        self.go_on = threading.Event()
        self.log: list[str] = []

    def load(self, report: ReportProgress) -> Ready | LoadFailed:
        self.threads.add(threading.get_ident())
        report(LoadProgress(stage="test", done=1, total=1))
        return self.answer

    def begin_step(self, step: Step) -> PendingStep:
        self.threads.add(threading.get_ident())
        if step.step == 13:
            raise ZeroDivisionError("unlucky")
        if step.step == 42:
            self.running.set()
            self.go_on.wait()
        self.log.append(f"step {step.step}")
        done = StepDone(step=step.step, rows=(), duration=0.0, model_duration=0.0)
        return PendingStep(lambda: done, computed=True)

    def close(self) -> None:
        self.log.append("closed")


Answers = trio.MemoryReceiveChannel[FromWorker]


async def start(nursery: trio.Nursery, core: Core) -> tuple[Callable[[int], None], Answers]:
    to_executor, steps = trio.open_memory_channel[Step](10)
    done, answers = trio.open_memory_channel[FromWorker](float("inf"))
    nursery.start_soon(lambda: run_executor(steps, done, core=core))
    return lambda number: to_executor.send_nowait(Step(step=number, chunks=())), answers


async def test_everything_runs_in_one_thread_and_in_order(make_ready: Callable[[], Ready]) -> None:
    core = Core(make_ready())
    async with trio.open_nursery() as nursery:
        send, answers = await start(nursery, core)
        for number in (1, 2, 3):
            send(number)
        assert isinstance(await answers.receive(), LoadProgress)
        assert await answers.receive() == core.answer
        steps = [await answers.receive() for _ in range(3)]
        assert [step.step for step in steps if isinstance(step, StepDone)] == [1, 2, 3]
        nursery.cancel_scope.cancel()
    assert len(core.threads) == 1
    assert core.threads.isdisjoint({threading.get_ident()})
    assert core.log[-1] == "closed"


class Device(Core):
    """Launches steps and answers them later, as a GPU does; at most two are under way."""

    def __init__(self, ready: Ready | LoadFailed) -> None:
        super().__init__(ready)
        self.free = threading.Semaphore(2)
        self.second = threading.Event()

    def begin_step(self, step: Step) -> PendingStep:
        self.free.acquire()
        self.log.append(f"launch {step.step}")
        if step.step == 2:
            self.second.set()
        return PendingStep(partial(self.answered, step))

    def answered(self, step: Step) -> StepDone:
        try:
            self.second.wait()  # no answer before the second step was launched
            if step.step == 13:
                raise ZeroDivisionError("unlucky")
            return StepDone(step=step.step, rows=(), duration=0.0, model_duration=0.0)
        finally:
            self.free.release()


async def test_the_next_step_is_launched_before_the_last_is_answered(make_ready: Callable[[], Ready]) -> None:
    core = Device(make_ready())
    async with trio.open_nursery() as nursery:
        send, answers = await start(nursery, core)
        for number in (1, 2, 3, 4):
            send(number)
        received = [await answers.receive() for _ in range(6)]
        assert [step.step for step in received if isinstance(step, StepDone)] == [1, 2, 3, 4]
        nursery.cancel_scope.cancel()
    assert core.log == ["launch 1", "launch 2", "launch 3", "launch 4", "closed"]


async def test_a_step_that_fails_on_the_device_is_the_last_one(
    make_ready: Callable[[], Ready], caplog: pytest.LogCaptureFixture
) -> None:
    """Those behind it are launched already, or blocked in the launch: they end unanswered."""
    core = Device(make_ready())
    core.second.set()
    async with trio.open_nursery() as nursery:
        send, answers = await start(nursery, core)
        for number in (13, 4, 5, 6):
            send(number)
        received = [message async for message in answers]
    assert received[-1] == StepFailed(step=13, message="ZeroDivisionError: unlucky")
    assert core.log[-1] == "closed"
    assert "step 13 failed" in caplog.text


async def test_a_step_that_raises_is_a_message_and_the_last_one(
    make_ready: Callable[[], Ready], caplog: pytest.LogCaptureFixture
) -> None:
    core = Core(make_ready())
    async with trio.open_nursery() as nursery:
        send, answers = await start(nursery, core)
        for number in (1, 13, 3):
            send(number)
        received = [message async for message in answers]
    assert received[-1] == StepFailed(step=13, message="ZeroDivisionError: unlucky")
    assert core.log == ["step 1", "closed"]
    assert "step 13 failed" in caplog.text


async def test_a_model_that_does_not_load_is_a_message(caplog: pytest.LogCaptureFixture) -> None:
    refusal = LoadFailed(code="unsupported_model", message="no")

    class Broken(Core):
        def load(self, report: ReportProgress) -> Ready | LoadFailed:
            raise OSError("disk on fire")

    for core, expected in (
        (Core(refusal), refusal),
        (Broken(refusal), LoadFailed(code="internal_error", message="OSError while loading the model: disk on fire")),
    ):
        async with trio.open_nursery() as nursery:
            _, answers = await start(nursery, core)
            received = [message async for message in answers]
        assert received[-1] == expected


async def test_cancelling_waits_for_the_running_step_and_forgets_the_next(make_ready: Callable[[], Ready]) -> None:
    core = Core(make_ready())

    async def let_go() -> None:
        await wait_all_tasks_blocked()  # the executor waits for its thread
        core.go_on.set()

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        send, answers = await start(nursery, core)
        send(42)
        send(43)
        async for message in answers:
            if isinstance(message, Ready):
                break
        await trio.to_thread.run_sync(core.running.wait)
        nursery.cancel_scope.cancel()
        outer.start_soon(let_go)
    assert core.log == ["step 42", "closed"]
