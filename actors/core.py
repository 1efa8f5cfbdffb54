"""The engine's inner half: the scheduler and its worker, wired. Requests come in and texts go out as messages.

    to_scheduler -> scheduler <=> supervisor == worker
                    scheduler -> texts, and those of batches' lines -> batch_texts

Every channel's bound is stated where it is made. The cycle of scheduler and worker cannot deadlock: the scheduler's
inbox never makes a sender wait, and live requests bound its size.
"""

import logging
import sys
import time
from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_bytes
from traceback import extract_tb
from typing import Final, cast

import trio

from ..protocol.adapters import Adapter
from ..protocol.messages import AdapterGone, ToDetokenizer, ToScheduler
from ..protocol.reports import BatchFigures
from ..protocol.settings import BLOCK_SIZE, ServeSettings, model_name
from ..protocol.steps import Ready, ReportProgress, WorkerOrder
from .adapters import AdapterTable, given_adapters
from .crash_report import crash_report, write_crash_report
from .database import data_folder
from .executor.inline import run_inline
from .flight import Flight
from .gateway.quotas import Quotas
from .observe.flight_file import FlightFile
from .scheduler.blame import Conviction
from .scheduler.scheduler import run_scheduler
from .scheduler.state import SchedulerState
from .supervisor.child_process import ChildProcess
from .supervisor.restart_budget import RESTARTS
from .supervisor.supervisor import run_supervisor
from .supervisor.worker_status import WorkerStatus

WATCH_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("triolet.flight")
_TEXTS: Final = 64  # a step's text and the choices it opened; the reader empties it in one turn


class Core:
    """The state of the scheduler and of its worker, and the ends of their channels."""

    def __init__(self, settings: ServeSettings, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas(settings.key_tables)  # of requests and of batches' lines
        self.flight = Flight()
        self.refused: Mapping[str, int] = {}  # by code; of the gateway in this process, if it is here
        self._file: FlightFile | None = None
        self.status = WorkerStatus(settings.engine.hang_timeout, self.flight)
        self.status.on_change.add(self._note_worker)
        self.batches = BatchFigures()
        self.state = SchedulerState(
            secret=token_bytes(32),
            max_losses=RESTARTS,  # the next loss would end the engine
            outbox_tokens=settings.limits.outbox_tokens,
            stall_timeout=settings.stall_timeout,
            max_adapters=settings.limits.max_loras,
            weights={key.sha256: key.weight for key in settings.key_tables},
            most_blocks={key.sha256: key.kv_tokens // BLOCK_SIZE for key in settings.key_tables if key.kv_tokens},
            flight=self.flight,
        )
        # No fixed bound, but limited in use: a few messages per live request, one answer per step in flight; the steps
        # in flight, and what live requests need prepared.
        self.to_scheduler, self._inbox = trio.open_memory_channel[ToScheduler](float("inf"))
        self._to_executor, self._steps = trio.open_memory_channel[WorkerOrder](float("inf"))
        self._to_texts, self.texts = trio.open_memory_channel[ToDetokenizer](_TEXTS)
        self._to_batches, self.batch_texts = trio.open_memory_channel[ToDetokenizer](_TEXTS)
        # During cancellation an actor may still `send_nowait` to one that has already ended. This clone keeps the
        # channel open for such messages, so the error that ended the engine is the only one raised.
        self._held_open = (self._inbox.clone(), self._steps.clone(), self.texts.clone(), self.batch_texts.clone())
        self._settings = settings
        self.adapters = AdapterTable(model_name(settings), given_adapters(settings), self._forget)

    def _forget(self, adapter: Adapter) -> None:
        self.to_scheduler.send_nowait(AdapterGone(adapter=adapter))

    async def start(self, nursery: trio.Nursery, on_progress: ReportProgress, worker: ChildProcess | None) -> Ready:
        """Run both in `nursery`. Raises `EngineLoadError` if the model cannot be loaded.

        `worker` was started early with the same settings; without it the supervisor starts one.
        """
        channels = self._inbox, self._to_executor, self._to_texts

        def report(conviction: Conviction) -> None:
            found = f"request {conviction.live.id} killed {conviction.losses} workers"
            self.flight.event(trio.current_time(), "convicted", found)
            content = crash_report(
                conviction, self.status.ready, with_tokens=self._settings.engine.log_level == "debug"
            )
            nursery.start_soon(trio.to_thread.run_sync, write_crash_report, data_folder(self._settings.data), content)

        scheduler = partial(run_scheduler, batch_texts=self._to_batches, state=self.state, on_conviction=report)
        nursery.start_soon(scheduler, *channels)
        supervisor = partial(run_supervisor, excused_losses=lambda: self.state.totals.excused_losses, first=worker)
        run_worker = run_inline if self._settings.inline else supervisor
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

    def _note_worker(self) -> None:
        status = self.status
        about = f"pid {status.pid}" if status.state == "ready" else status.reason
        self.flight.change(trio.current_time(), "worker", f"{status.state}: {about}")

    async def record(self, folder: Path) -> None:
        """Keep the flight recorder's file there until `close`, and note once a second what has changed."""
        try:
            self._file = await trio.to_thread.run_sync(
                FlightFile, self.flight, folder, trio.current_time() - time.perf_counter()
            )
        except OSError as error:
            _LOG.warning("the flight recorder has no file: %s", error)
        try:
            while True:
                now, totals, step_time = trio.current_time(), self.state.totals, self.status.step_time
                tokens = totals.prefill_tokens + totals.generated_tokens
                self.flight.watch(
                    now, self.status.health(now), self.refused, steps=totals.steps, seconds=step_time.sum, tokens=tokens
                )
                await trio.sleep(WATCH_SECONDS)
        finally:
            self.flight.beat = inf  # nobody watches any more, and the loop may turn for long

    async def close(self) -> None:
        """Call it when both have ended. It may wait for the disk, and other models' streams go on."""
        self.flight.event(trio.current_time(), "stopped", _ending(sys.exception()))
        if self._file is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._file.close)
        for end in self._held_open:
            end.close()


def _ending(error: BaseException | None) -> str:
    """What ended the engine; the words of an error could quote a request, so only its kind and place."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if error is None or isinstance(error, trio.Cancelled | KeyboardInterrupt):
        return "in order"
    places = extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {places[-1].filename}:{places[-1].lineno}" if places else type(error).__name__
