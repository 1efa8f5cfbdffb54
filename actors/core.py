"""The engine's inner half, wired: the scheduler and its worker. Requests come in as messages, texts go out as messages.

    to_scheduler -> scheduler <=> supervisor == worker
                    scheduler -> texts

Every channel's bound stands beside it. The circle of scheduler and worker cannot lock up: the scheduler's inbox never
makes anybody wait, and is itself bounded by what is live.
"""

from functools import partial
from secrets import token_bytes
from typing import Final

import trio

from ..protocol.messages import ToDetokenizer, ToScheduler
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready, ReportProgress, Step
from .executor.inline import run_inline
from .scheduler.scheduler import run_scheduler
from .scheduler.state import SchedulerState
from .supervisor.child_process import ChildProcess
from .supervisor.restart_budget import RESTARTS
from .supervisor.supervisor import run_supervisor
from .supervisor.worker_status import WorkerStatus

_STEPS: Final = 4  # more than the steps in flight: the scheduler bounds them itself
_TEXTS: Final = 64  # a step's text and the choices it opened; whoever reads them empties it in one turn


class Core:
    """The scheduler's state, its worker's, and the ends of their channels."""

    def __init__(self, settings: ServeSettings) -> None:
        self.status = WorkerStatus()
        self.state = SchedulerState(
            secret=token_bytes(32),
            max_losses=RESTARTS,  # with the next loss the engine would end
            outbox_tokens=settings.limits.outbox_tokens,
            stall_timeout=settings.stall_timeout,
        )
        # Unbounded, and bounded by its use: a few messages per live request, one answer per step in flight.
        self.to_scheduler, self._inbox = trio.open_memory_channel[ToScheduler](float("inf"))
        self._to_executor, self._steps = trio.open_memory_channel[Step](_STEPS)
        self._to_texts, self.texts = trio.open_memory_channel[ToDetokenizer](_TEXTS)
        # While actors are being cancelled, one may still speak without waiting to another that has gone. Held open
        # here, the channel takes that last message, and the error that ended the engine is the only one to be seen.
        self._held_open = (self._inbox.clone(), self._steps.clone(), self.texts.clone())
        self._settings = settings

    async def start(self, nursery: trio.Nursery, on_progress: ReportProgress, worker: ChildProcess | None) -> Ready:
        """Run both in `nursery`. Raises `EngineLoadError` where the model cannot be loaded.

        `worker` is one that was started early, with the same settings; without it the supervisor starts its own.
        """
        nursery.start_soon(partial(run_scheduler, self._inbox, self._to_executor, self._to_texts, state=self.state))
        run_worker = run_inline if self._settings.inline else partial(run_supervisor, first=worker)
        ready: Ready = await nursery.start(
            partial(
                run_worker,
                self._settings.engine,
                steps=self._steps,
                scheduler=self.to_scheduler.clone(),
                status=self.status,
                on_progress=on_progress,
            )
        )
        return ready

    def close(self) -> None:
        """When all of it has ended."""
        for end in self._held_open:
            end.close()
