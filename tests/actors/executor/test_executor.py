"""The executor's thread: order, errors, and that nobody leaves while a step runs. A core of its own is the model."""

import threading
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actors.errors import EngineLoadError
from triolet.actors.executor.inline import run_inline
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.models.errors import CheckpointError, UnsupportedModel
from triolet.models.stepper import PendingStep, Stepper
from triolet.protocol.messages import EngineFailed, ToScheduler, WorkerReady
from triolet.protocol.settings import EngineSettings
from triolet.protocol.steps import (
    AdapterFailed,
    AdapterReady,
    ForgetAdapters,
    GrammarFailed,
    GrammarReady,
    LoadProgress,
    PrepareAdapter,
    PrepareGrammar,
    Ready,
    ReportProgress,
    Step,
    StepDone,
    StepFailed,
    WorkerOrder,
)


class _Panic(BaseException):
    """As PyO3 raises a panic: no Exception."""


class Core:
    """Answers each step with its own number; number 13 raises, step 42 waits until it may go on."""

    def __init__(self, ready: Ready | BaseException) -> None:
        self.ready = ready
        self.unlucky: BaseException = ZeroDivisionError("unlucky")
        self.threads: set[int] = set()
        self.running = threading.Event()
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.log: list[str] = []

    def load(self, report: ReportProgress) -> tuple[Stepper, Ready]:
        self.threads.add(threading.get_ident())
        report(LoadProgress(stage="test", done=1, total=1))
        if isinstance(self.ready, BaseException):
            raise self.ready
        return self, self.ready

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        self.threads.add(threading.get_ident())
        if order.grammar == 13:
            raise self.unlucky
        answer(GrammarReady(grammar=order.grammar))

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        assert threading.get_ident() not in self.threads
        if path == "missing":
            raise CheckpointError("adapter", path, "there is no such folder")
        if path == "damaged":
            raise IndexError("list index out of range")
        if path == "unlucky":
            raise self.unlucky
        if path == "slow":
            self.reading.set()
            self.go_on.wait()
        return partial(self.add_adapter, number)

    def add_adapter(self, number: int) -> None:
        self.threads.add(threading.get_ident())
        self.log.append(f"add {number}")
        if number == 13:
            raise self.unlucky

    def forget_adapter(self, number: int) -> None:
        self.threads.add(threading.get_ident())
        self.log.append(f"forget {number}")
        if number == 13:
            raise self.unlucky

    def begin_step(self, step: Step) -> PendingStep:
        self.threads.add(threading.get_ident())
        if step.step == 13:
            raise self.unlucky
        if step.step == 42:
            self.running.set()
            self.go_on.wait()
        self.log.append(f"step {step.step}")
        done = StepDone(step=step.step, rows=(), duration=0.0, model_duration=0.0)
        return PendingStep(lambda: done, computed=True)

    def progress(self) -> int:
        return 0

    def close(self) -> None:
        self.log.append("closed")


class House:
    """The executor inline, and what the scheduler would see of it: `messages`, after those of loading."""

    def __init__(self, core: Core) -> None:
        self.progress: list[LoadProgress] = []
        self.messages: trio.MemoryReceiveChannel[ToScheduler]
        self._core = core

    async def start(self, nursery: trio.Nursery) -> None:
        self._to_executor, steps = trio.open_memory_channel[WorkerOrder](10)
        scheduler, self.messages = trio.open_memory_channel[ToScheduler](float("inf"))
        ready: Ready = await nursery.start(
            partial(
                run_inline,
                EngineSettings(model="none"),
                steps=steps,
                scheduler=scheduler,
                status=WorkerStatus(),
                on_progress=self.progress.append,
                load=self._core.load,
            )
        )
        assert await self.messages.receive() == WorkerReady(ready=ready)

    def order(self, *orders: WorkerOrder) -> None:
        for order in orders:
            self._to_executor.send_nowait(order)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.order(Step(step=number, chunks=()))

    async def receive(self, count: int) -> list[int]:
        """The numbers of so many steps that were done."""
        steps = [await self.messages.receive() for _ in range(count)]
        assert all(isinstance(step, StepDone) for step in steps)
        return [step.step for step in steps if isinstance(step, StepDone)]


async def test_everything_runs_in_one_thread_and_in_order(make_ready: Callable[[], Ready]) -> None:
    core = Core(make_ready())
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        assert house.progress == [LoadProgress(stage="test", done=1, total=1)]
        house.send(1, 2, 3)
        assert await house.receive(3) == [1, 2, 3]
        nursery.cancel_scope.cancel()
    assert len(core.threads) == 1
    assert core.threads.isdisjoint({threading.get_ident()})
    assert core.log[-1] == "closed"


async def test_steps_go_on_while_an_adapter_is_read(make_ready: Callable[[], Ready]) -> None:
    """It is added between two steps, in their thread; one that was forgotten meanwhile is not."""
    core = Core(make_ready())
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        house.order(PrepareAdapter(adapter=1, path="slow"), PrepareAdapter(adapter=2, path="a"))
        await trio.to_thread.run_sync(core.reading.wait)
        house.send(1)
        house.order(ForgetAdapters(adapters=(1,)))
        house.send(2)
        assert await house.receive(2) == [1, 2]
        core.go_on.set()
        assert await house.messages.receive() == AdapterReady(adapter=2)
        house.send(3)
        assert await house.receive(1) == [3]
        nursery.cancel_scope.cancel()
    assert core.log == ["step 1", "forget 1", "step 2", "add 2", "step 3", "closed"]
    assert len(core.threads) == 1


async def test_an_adapter_that_cannot_be_used_costs_its_requests_alone(
    make_ready: Callable[[], Ready], caplog: pytest.LogCaptureFixture
) -> None:
    core = Core(make_ready())
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        for number, path in ((2, "missing"), (3, "damaged"), (13, "a")):
            house.order(PrepareAdapter(adapter=number, path=path))
        answers = [await house.messages.receive() for _ in range(3)]
        house.order(ForgetAdapters(adapters=(13,)))
        house.send(1)
        assert await house.receive(1) == [1]
        nursery.cancel_scope.cancel()
    assert answers == [
        AdapterFailed(adapter=2, message="adapter = 'missing': there is no such folder"),
        AdapterFailed(adapter=3, message="IndexError: list index out of range"),
        AdapterFailed(adapter=13, message="ZeroDivisionError: unlucky"),
    ]
    assert "PrepareAdapter(adapter=3, path='damaged') failed" in caplog.text
    assert "ForgetAdapters(adapters=(13,)) failed" in caplog.text


class Device(Core):
    """Launches steps and answers them later, as a GPU does; at most two are under way."""

    def __init__(self, ready: Ready) -> None:
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
                raise self.unlucky
            return StepDone(step=step.step, rows=(), duration=0.0, model_duration=0.0)
        finally:
            self.free.release()


async def test_the_next_step_is_launched_before_the_last_is_answered(make_ready: Callable[[], Ready]) -> None:
    core = Device(make_ready())
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        house.send(1, 2, 3, 4)
        assert await house.receive(4) == [1, 2, 3, 4]
        nursery.cancel_scope.cancel()
    assert core.log == ["launch 1", "launch 2", "launch 3", "launch 4", "closed"]


async def check_failure(core: Core, numbers: tuple[int, ...], answered: list[int]) -> None:
    """Step 13 is the last one that is answered, and the engine fails with it."""
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        house.send(*numbers)
        assert await house.receive(len(answered)) == answered
        assert await house.messages.receive() == StepFailed(step=13, message="ZeroDivisionError: unlucky")
        assert isinstance(await house.messages.receive(), EngineFailed)
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.EndOfChannel):
        house.messages.receive_nowait()
    assert core.log[-1] == "closed"


async def test_a_step_that_fails_on_the_device_is_the_last_one(
    make_ready: Callable[[], Ready], caplog: pytest.LogCaptureFixture
) -> None:
    """Those behind it are launched already, or blocked in the launch: they end unanswered."""
    core = Device(make_ready())
    core.second.set()
    await check_failure(core, (13, 4, 5, 6), [])
    assert "step 13 failed" in caplog.text


async def test_a_step_that_raises_is_a_message_and_the_last_one(
    make_ready: Callable[[], Ready], caplog: pytest.LogCaptureFixture
) -> None:
    core = Core(make_ready())
    await check_failure(core, (1, 13, 3), [1])
    assert core.log == ["step 1", "closed"]
    assert "step 13 failed" in caplog.text


@pytest.mark.parametrize("make", [Core, Device])
async def test_a_panic_ends_no_thread(make: type[Core], make_ready: Callable[[], Ready]) -> None:
    """It is answered as any error is: where an adapter is read or added, a grammar is ordered, and in a step."""
    core = make(make_ready())
    core.unlucky = _Panic("unlucky")
    house = House(core)
    async with trio.open_nursery() as nursery:
        await house.start(nursery)
        house.order(PrepareAdapter(adapter=2, path="unlucky"))
        assert await house.messages.receive() == AdapterFailed(adapter=2, message="_Panic: unlucky")
        house.order(PrepareAdapter(adapter=13, path="a"))
        assert await house.messages.receive() == AdapterFailed(adapter=13, message="_Panic: unlucky")
        house.order(PrepareGrammar(grammar=13, text=""))
        assert await house.messages.receive() == GrammarFailed(grammar=13, message="_Panic: unlucky")
        house.send(13, 2)
        assert await house.messages.receive() == StepFailed(step=13, message="_Panic: unlucky")
        nursery.cancel_scope.cancel()
    assert core.log[-1] == "closed"


async def test_a_model_that_does_not_load_is_an_error() -> None:
    for raised, code, message in (
        (UnsupportedModel("key", 1, "no"), "unsupported_model", "key = 1: no"),
        (
            MemoryError(),
            "out_of_memory",
            "memory ran out while loading the weights or making room for the KV cache: pass --quantize",
        ),
        (OSError("disk on fire"), "internal_error", "OSError while loading the model: disk on fire"),
        (_Panic("unlucky"), "internal_error", "_Panic while loading the model: unlucky"),
    ):
        core = Core(raised)
        with pytest.RaisesGroup(EngineLoadError, flatten_subgroups=True) as group:
            async with trio.open_nursery() as nursery:
                await House(core).start(nursery)
        (error,) = leaves(group.value)
        assert error.code == code
        assert error.message.startswith(message)
        assert core.log == []  # there is nothing to close


def leaves(error: BaseException) -> list[EngineLoadError]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in leaves(inner)]
    assert isinstance(error, EngineLoadError)
    return [error]


async def test_cancelling_waits_for_the_running_step_and_forgets_the_next(make_ready: Callable[[], Ready]) -> None:
    core = Core(make_ready())
    house = House(core)

    async def let_go() -> None:
        await wait_all_tasks_blocked()  # the executor waits for its thread
        core.go_on.set()

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        await house.start(nursery)
        house.send(42, 43)
        await trio.to_thread.run_sync(core.running.wait)
        nursery.cancel_scope.cancel()
        outer.start_soon(let_go)
    assert core.log == ["step 42", "closed"]
