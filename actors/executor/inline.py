"""The executor inside the front process (`--inline`), behind the same channel ends as the supervisor: for debugging.

There is no process to replace: if a step raises, its requests fail, and so does the engine.
"""

from contextlib import suppress
from functools import partial
from typing import assert_never

import trio

from ...protocol.messages import EngineFailed, ToScheduler, WorkerReady
from ...protocol.settings import EngineSettings
from ...protocol.steps import (
    AdapterFailed,
    AdapterReady,
    FromWorker,
    GrammarFailed,
    GrammarReady,
    LoadFailed,
    LoadProgress,
    Pong,
    Ready,
    ReportProgress,
    Step,
    StepDone,
    StepFailed,
    WorkerOrder,
)
from ..errors import EngineLoadError
from ..supervisor.worker_status import PING_INTERVAL, WorkerStatus
from .executor import Load, StepThreads, load_from


async def run_inline(
    settings: EngineSettings,
    *,
    steps: trio.MemoryReceiveChannel[WorkerOrder],
    scheduler: trio.MemorySendChannel[ToScheduler],
    status: WorkerStatus,
    on_progress: ReportProgress,
    load: Load | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load the model and run steps until cancelled; started with Ready. Raises `EngineLoadError` if loading fails.

    Cancelling waits for the step that is running.
    """
    token = trio.lowlevel.current_trio_token()
    # Unbounded: a few progress messages, and one answer per step in flight.
    from_threads, answers = trio.open_memory_channel[FromWorker](float("inf"))

    def deliver(message: FromWorker) -> None:
        with suppress(trio.ClosedResourceError):  # the engine has ended
            from_threads.send_nowait(message)

    def report(message: FromWorker) -> None:
        """Called in the executor's threads."""
        with suppress(trio.RunFinishedError):  # the event loop has ended
            token.run_sync_soon(deliver, message)

    async def submit_steps(threads: StepThreads) -> None:
        async for order in steps:
            if isinstance(order, Step):
                status.step_sent(order, trio.current_time())
                threads.submit(order)
            else:
                threads.prepare(order)

    async def hear() -> None:
        """No process could be silent: the event loop that checks also runs this."""
        while True:
            status.heard(trio.current_time())
            await trio.sleep(PING_INTERVAL)

    with steps, scheduler, from_threads, answers:
        threads = StepThreads(load or partial(load_from, settings), report)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear)
                nursery.start_soon(submit_steps, threads)
                async for message in answers:
                    _pass_on(message, status, scheduler, on_progress, task_status)
        finally:
            threads.forget_waiting()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(threads.end)


def _pass_on(
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
        case GrammarReady() | GrammarFailed() | AdapterReady() | AdapterFailed():
            scheduler.send_nowait(message)
        case LoadProgress():
            status.progress(message, trio.current_time())
            on_progress(message)
        case Ready():
            status.set_ready(message, trio.current_time())
            scheduler.send_nowait(WorkerReady(ready=message))
            task_status.started(message)
        case LoadFailed():
            raise EngineLoadError(message.code, message.message)
        case Pong():
            raise AssertionError("no ping was sent")
        case _:
            assert_never(message)
