"""The executor inside the front process (`--inline`), behind the same channel ends as the supervisor: for debugging.

There is no process to replace: when a step raises, its requests fail, and so does the engine.
"""

from contextlib import suppress
from typing import assert_never

import trio

from ...protocol.messages import EngineFailed, ToScheduler, WorkerReady
from ...protocol.settings import EngineSettings
from ...protocol.steps import (
    FromWorker,
    LoadFailed,
    LoadProgress,
    Pong,
    Ready,
    ReportProgress,
    Step,
    StepDone,
    StepFailed,
)
from ..errors import EngineLoadError
from ..supervisor.worker_status import PING_INTERVAL, WorkerStatus
from .executor import ExecutorCore, ModelCore, StepThreads


async def run_inline(
    settings: EngineSettings,
    *,
    steps: trio.MemoryReceiveChannel[Step],
    scheduler: trio.MemorySendChannel[ToScheduler],
    status: WorkerStatus,
    on_progress: ReportProgress,
    core: ExecutorCore | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the model and run steps; started with Ready. Raises `EngineLoadError` if that never comes."""
    # Bounded by the steps in flight.
    to_executor, own_steps = trio.open_memory_channel[Step](1000)
    done, answers = trio.open_memory_channel[FromWorker](float("inf"))

    async def feed() -> None:
        async for step in steps:
            status.step_sent(step.step, trio.current_time())
            to_executor.send_nowait(step)

    async def listen() -> None:
        async for message in answers:
            _take(message, status, scheduler, on_progress, task_status)

    async def hear() -> None:
        """The event loop that asks is the one that would answer."""
        while True:
            status.heard(trio.current_time())
            await trio.sleep(PING_INTERVAL)

    # `own_steps` is held open too: a step may follow before the scheduler hears that the executor has ended.
    with steps, scheduler, to_executor, own_steps.clone():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            nursery.start_soon(feed)
            nursery.start_soon(listen)
            await run_executor(own_steps, done, core=core or ModelCore(settings))


async def run_executor(
    steps: trio.MemoryReceiveChannel[Step],
    done: trio.MemorySendChannel[FromWorker],
    *,
    core: ExecutorCore,
) -> None:
    """The threads of a core behind channels: load, then run every step, until there are no more or one has failed.

    `done` is unbounded by its maker: a few progress messages, and one answer per step in flight. Cancelling waits for
    the step that is running.
    """
    token, failed = trio.lowlevel.current_trio_token(), trio.Event()

    def deliver(message: FromWorker) -> None:
        if isinstance(message, LoadFailed | StepFailed):
            failed.set()
        try:
            done.send_nowait(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            failed.set()  # nobody listens any more

    def report(message: FromWorker) -> None:
        with suppress(trio.RunFinishedError):  # a loop that has ended needs no messages
            token.run_sync_soon(deliver, message)

    with steps, done:
        threads = StepThreads(core, report)
        try:
            async with trio.open_nursery() as nursery:

                async def feed() -> None:
                    async for step in steps:
                        threads.submit(step)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(feed)
                await failed.wait()
                nursery.cancel_scope.cancel()
        finally:
            threads.forget_waiting()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(threads.end)


def _take(
    message: FromWorker,
    status: WorkerStatus,
    scheduler: trio.MemorySendChannel[ToScheduler],
    on_progress: ReportProgress,
    task_status: trio.TaskStatus[Ready],
) -> None:
    match message:
        case StepDone():
            status.step_done(message.step, message.duration, trio.current_time())
            scheduler.send_nowait(message)
        case StepFailed():
            reason = f"a step failed: {message.message}"
            status.lose("failed", reason)
            scheduler.send_nowait(message)
            scheduler.send_nowait(EngineFailed(reason=reason))
        case LoadProgress():
            on_progress(message)
        case Ready():
            status.set_ready(message, trio.current_time())
            scheduler.send_nowait(WorkerReady(ready=message))
            task_status.started(message)
        case LoadFailed():
            raise EngineLoadError(message.code, message.message)
        case Pong():
            raise AssertionError("nobody pings")
        case _:
            assert_never(message)
