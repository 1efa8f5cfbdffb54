"""The supervisor: keeps a worker process running, carries its messages, and tells the scheduler when one is lost.

A worker that dies is replaced, as often as the restart budget allows. All streams survive: the token logs are in the
front, so for the scheduler a lost worker is a preemption of everything. When the budget is spent, the front stays up
and refuses requests.
"""

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

import msgspec
import trio
from msgspec import structs

from ...protocol.messages import EngineFailed, ToScheduler, WorkerLost, WorkerReady
from ...protocol.settings import EngineSettings
from ...protocol.steps import (
    AdapterFailed,
    AdapterReady,
    FromWorker,
    GrammarFailed,
    GrammarReady,
    LoadFailed,
    LoadProgress,
    Ping,
    Pong,
    Ready,
    ReportProgress,
    Step,
    StepDone,
    StepFailed,
    WorkerOrder,
)
from ..errors import EngineLoadError
from .child_process import ChildProcess, start_worker
from .link import Link, LinkError
from .restart_budget import PERIOD, RESTARTS, RestartBudget
from .worker_status import PING_INTERVAL, WorkerStatus

_VERDICT_SECONDS: Final = 0.05  # for the scheduler to say whether a request is to blame; it needs a turn
_LOOK: Final = PING_INTERVAL / 2  # seconds between two looks at the worker
_SECOND_LOOK: Final = 0.1  # the same once its step hangs: several turns of the loop
_LOG: Final = logging.getLogger("triolet.supervisor")
_DECODER: Final = msgspec.msgpack.Decoder[FromWorker](FromWorker)


class Supervisor:
    """One worker after another, behind the same channel ends."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        steps: trio.MemoryReceiveChannel[WorkerOrder],
        scheduler: trio.MemorySendChannel[ToScheduler],
        status: WorkerStatus,
        on_progress: ReportProgress,
        excused_losses: Callable[[], int],
        first: ChildProcess | None,
    ) -> None:
        self._settings = settings
        self._excused_losses = excused_losses
        self._first = first
        self._steps = steps
        self._scheduler = scheduler
        self._status = status
        self._on_progress = on_progress
        self._spoke = 0.0  # when the last message was sent to the worker
        self._lost = 0.0  # when the last worker was
        self._crashed = False  # the last worker: by itself, perhaps because of what it computed

    async def run(self, task_status: trio.TaskStatus[Ready]) -> None:
        """Run workers until the budget is spent, then discard steps until the engine ends."""
        budget = RestartBudget()
        reason, steps = await self._run_worker(task_status), 0
        while True:
            before, steps = steps, self._status.step_time.count
            self._lost = trio.current_time()
            self._status.lose("restarting", f"{reason}; another one is being started")
            self._scheduler.send_nowait(WorkerLost(reason=reason, crashed=self._crashed))
            async with trio.open_nursery() as nursery:
                # The scheduler may be waiting to send a step to the dead worker; nothing will run it.
                nursery.start_soon(self._discard_steps)
                await trio.sleep(_VERDICT_SECONDS)
                budget.excuse(self._excused_losses())
                delay = budget.next_delay(trio.current_time(), steps - before)
                if delay is not None:
                    _LOG.warning("%s; starting another in %.2f s", reason, delay)
                    await trio.sleep(delay)
                nursery.cancel_scope.cancel()
            if delay is None:
                break
            self._status.restarts += 1
            reason = await self._run_worker(None)
        message = f"{reason}, {RESTARTS} restarts within {PERIOD:.0f} s did not help"
        _LOG.error("%s; new requests are refused", message)
        self._status.lose("failed", message)
        self._scheduler.send_nowait(EngineFailed(reason=message))
        await self._discard_steps()

    async def _discard_steps(self) -> None:
        async for _ in self._steps:
            pass

    async def _run_worker(self, task_status: trio.TaskStatus[Ready] | None) -> str:
        """One worker from start to end; returns the reason of its end. `task_status` is given for the first one."""
        try:
            process = self._first or start_worker(self._settings)
        except OSError as error:  # out of memory, descriptors or processes: it may pass, as with a lost worker
            why = f"a worker process cannot be started: {error}"
            if task_status is not None:
                raise EngineLoadError("internal_error", why) from error
            return why
        self._first = None
        self._crashed = False
        self._status.begin(process.pid, trio.current_time())
        why = ""
        try:
            link = Link(process.stream, _DECODER)
            answer = await self._load_while_discarding(link)
            if isinstance(answer, Ready):
                self._status.set_ready(answer, trio.current_time())
                # The next worker must hold as long a sequence, even if less memory is free then.
                self._settings = structs.replace(self._settings, max_model_len=answer.context_length)
                if task_status is not None:
                    task_status.started(answer)
                else:
                    seconds = trio.current_time() - self._lost
                    _LOG.info("ready again after %.1f s, with worker %d; running requests go on", seconds, process.pid)
                why = await self._converse(link, answer)
            elif isinstance(answer, LoadFailed):
                if task_status is not None:
                    raise EngineLoadError(answer.code, answer.message)
                why = f"the model cannot be loaded again: {answer.message}"
            else:
                why = answer
        finally:
            how = await process.end()
            self._crashed |= process.status not in (0, -signal.SIGKILL)
        if task_status is not None and self._status.ready is None:
            likely = "if memory ran out, pass --quantize int8 or int4, or take a smaller model"
            remedy = likely if how.endswith("SIGKILL") else "its messages are above"
            raise EngineLoadError("internal_error", f"{how} while it loaded the model; {remedy}")
        return f"{how} ({why})" if why else how

    async def _load_while_discarding(self, link: Link[FromWorker]) -> Ready | LoadFailed | str:
        """The worker's answer to its LoadModel, or why there is none. Discards steps that come meanwhile."""
        answer: Ready | LoadFailed | str = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard_steps)
            try:
                answer = await self._load(link)
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass  # it is gone; its exit status says why
            except LinkError as error:
                answer = str(error)
            nursery.cancel_scope.cancel()
        return answer

    async def _load(self, link: Link[FromWorker]) -> Ready | LoadFailed:
        while True:
            message = await link.receive()
            match message:
                case LoadProgress():
                    self._status.progress(message, trio.current_time())
                    self._on_progress(message)
                case Ready() | LoadFailed():
                    return message
                case _:
                    raise LinkError(f"a {type(message).__name__} before Ready")

    async def _converse(self, link: Link[FromWorker], ready: Ready) -> str:
        """Carry steps and answers until the worker is gone."""
        self._drop_waiting_steps()
        self._scheduler.send_nowait(WorkerReady(ready=ready))
        self._spoke = trio.current_time()
        why = ""

        async def watch() -> None:
            nonlocal why
            before: bool | None = None
            # Twice in a row for the same reason: after a pause of this process, what the worker said is read between.
            # One that is silent gets another ping before the second look.
            while True:
                reason, hangs = self._status.must_be_killed(trio.current_time()), self._status.hangs
                if reason is not None and before is hangs:
                    break
                before = None if reason is None else hangs
                await trio.sleep(_LOOK if reason is None else _SECOND_LOOK if hangs else PING_INTERVAL)
            why, self._crashed = reason, hangs
            nursery.cancel_scope.cancel()

        async def send() -> None:
            nonlocal why
            try:
                await self._send_steps(link)
            except LinkError as error:
                why, self._crashed = str(error), True
            nursery.cancel_scope.cancel()

        async def receive() -> None:
            nonlocal why
            try:
                await self._receive_answers(link)
            except LinkError as error:
                why, self._crashed = str(error), True
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(self._ping, link)
            nursery.start_soon(send)
            nursery.start_soon(receive)
        return why

    def _drop_waiting_steps(self) -> None:
        """Discard what the scheduler sent before it learnt of the loss; it has since forgotten these steps."""
        try:
            while True:
                self._steps.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            pass

    async def _send_steps(self, link: Link[FromWorker]) -> None:
        """Send the scheduler's orders."""
        try:
            while True:
                order = await self._steps.receive()
                self._spoke = trio.current_time()
                if isinstance(order, Step):
                    self._status.step_sent(order, self._spoke)
                await link.send(order)
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return

    async def _ping(self, link: Link[FromWorker]) -> None:
        """If no step was sent for a while, check that the worker is alive."""
        with suppress(trio.BrokenResourceError):
            while True:
                if trio.current_time() >= self._spoke + PING_INTERVAL:
                    self._spoke = trio.current_time()
                    await link.send(Ping())
                # To the very time that is compared: of a difference, rounding may leave a sleep too short to pass.
                await trio.sleep_until(self._spoke + PING_INTERVAL)

    async def _receive_answers(self, link: Link[FromWorker]) -> None:
        try:
            while True:
                message = await link.receive()
                now = trio.current_time()
                self._status.heard(now, message.progress if isinstance(message, Pong) else None)
                match message:
                    case StepDone():
                        self._status.step_done(message.step, message.duration, now)
                        self._scheduler.send_nowait(message)
                    case StepFailed():
                        _LOG.error("step %d failed in the worker: %s", message.step, message.message)
                        self._scheduler.send_nowait(message)
                    case GrammarReady() | GrammarFailed() | AdapterReady() | AdapterFailed():
                        self._scheduler.send_nowait(message)
                    case Pong():
                        pass
                    case LoadProgress() | Ready() | LoadFailed():
                        raise LinkError(f"a {type(message).__name__} after Ready")
                    case _:
                        assert_never(message)
        except trio.EndOfChannel:
            return


async def run_supervisor(
    settings: EngineSettings,
    *,
    steps: trio.MemoryReceiveChannel[WorkerOrder],
    scheduler: trio.MemorySendChannel[ToScheduler],
    status: WorkerStatus,
    on_progress: ReportProgress,
    excused_losses: Callable[[], int] = lambda: 0,
    first: ChildProcess | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep a worker running; started with the first one's Ready. Raises `EngineLoadError` if that never comes.

    `first` is an already started worker with the same settings; it is ended like every other. `excused_losses`:
    workers that died of requests which the scheduler found.
    """
    with steps, scheduler:
        supervisor = Supervisor(
            settings,
            steps=steps,
            scheduler=scheduler,
            status=status,
            on_progress=on_progress,
            excused_losses=excused_losses,
            first=first,
        )
        await supervisor.run(task_status)
