"""Operators' questions and their answers, read from the tables of the scheduler in this process.

It remembers only what must stay the same between views: the tenants' numbers, and a sample of the throughput for each
second in which somebody watched.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

import msgspec
import trio

from ...protocol.engine_view import AboutEngine, Limits, RateSample, View, WebProcesses, WorkerView
from ...protocol.explanation import Standing
from ...protocol.flight import FlightRecording, Record
from ...protocol.reports import BatchFigures, FrontsReport, Health, ProcessFigures, ServerReport, WorkerFigures
from ...protocol.settings import ServeSettings, model_name
from ..gateway.accounts import add_up
from ..scheduler.state import SchedulerState
from ..supervisor.process_facts import open_files, resident_bytes
from ..supervisor.worker_status import WorkerStatus
from .view_rows import (
    ProcessOf,
    TenantNumbers,
    batch_rows,
    histogram_counts,
    only_process,
    owned_map,
    queue_rows,
    totals,
)

SAMPLE_SECONDS: Final = 1.0
_SAMPLES: Final = 300  # five minutes of watching
_TOLD: Final = 400  # records of steps, of all that the flight recorder has


class Observer:
    """Answers from the scheduler in this process; the web's counters are collected from where they are."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        state: SchedulerState,
        status: WorkerStatus,
        draining: Callable[[], bool],
        collect_web: Callable[[], Awaitable[FrontsReport]],
        batches: BatchFigures | None = None,
        process_of: ProcessOf = only_process,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._model_name = model_name(settings)
        self._state = state
        self._status = status
        self._draining = draining
        self._collect_web = collect_web
        self._batches = batches or BatchFigures()
        self._process_of = process_of
        self._clock = clock
        self._started = clock()
        self._tenant = TenantNumbers()
        self._history: deque[RateSample] = deque(maxlen=_SAMPLES)

    def health(self) -> Health:
        if self._draining():
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return self._status.health(self._clock())

    def standing(self, id: str) -> Standing | None:
        """Where a request is in the scheduler; None if it is not there."""
        return self._state.standing(id, self._clock())

    def recording(self, tasks: list[str] | None = None) -> FlightRecording:
        """What the flight recorder has: the last steps and all events. `tasks`: of a process that is not the web's."""
        flight = self._state.flight
        records = [*flight.events, *tuple(flight.steps)[-_TOLD:]]
        return FlightRecording(now=self._clock(), records=msgspec.convert(records, list[Record]), tasks=tasks or [])

    async def report(self) -> ServerReport:
        web, status = await self._collect_web(), self._status
        return ServerReport(
            health=self.health(),
            scheduler=self._state.statistics(),
            worker=WorkerFigures(pid=status.pid, restarts=status.restarts, step_time=status.step_time.figures()),
            process=own_figures(),
            web=web,
            batches=self._batches,
        )

    def about(self) -> AboutEngine | None:
        ready = self._status.ready
        if ready is None:
            return None
        return AboutEngine(
            model=self._model_name,
            architecture=ready.architecture,
            parameters=ready.parameters,
            device=ready.device,
            dtype=ready.dtype,
            quantize=ready.quantize,
            kv_cache_dtype=ready.kv_cache_dtype,
            version=version("triolet"),
            memory=ready.memory,
            limits=Limits(
                max_step_tokens=ready.max_step_tokens,
                max_running=ready.max_running,
                context_length=ready.context_length,
            ),
            uptime=self._clock() - self._started,
            history=list(self._history),
        )

    async def view(self) -> View:
        """The scheduler at one moment, after collecting the web's counters."""
        return self.view_with(await self._collect_web())

    def view_with(self, web: FrontsReport) -> View:
        now, state, status = self._clock(), self._state, self._status
        statistics, accounts = state.statistics(), add_up([web.accounts])
        health, pid = self.health(), status.pid
        counters = totals(statistics.totals, accounts, status)
        if not self._history or now - self._history[-1].time >= SAMPLE_SECONDS:
            self._history.append(RateSample(now, counters.prefill_tokens, counters.generated_tokens))
        return View(
            time=now,
            worker=WorkerView(
                ready=health.ready,
                status=health.status,
                reason=health.reason,
                pid=pid,
                restarts=status.restarts,
                steps_in_flight=statistics.steps_in_flight,
                step_age=round(status.step_age(now), 4),
                resident_bytes=resident_bytes(pid) if pid is not None else 0,
            ),
            live=web.live,
            running=statistics.running,
            parked=statistics.parked,
            waiting=statistics.waiting,
            waiting_by_reason=statistics.waiting_by_reason,
            rows=batch_rows(state, now, self._tenant, self._process_of),
            queue=queue_rows(state, now, self._tenant, self._process_of),
            blocks=owned_map(state),
            totals=counters,
            first_token=histogram_counts(accounts.first_token),
            between_tokens=histogram_counts(accounts.between_tokens),
            step_time=histogram_counts(status.step_time),
            web=_web_processes(web),
        )


def _web_processes(web: FrontsReport) -> WebProcesses | None:
    if web.processes is None:
        return None
    return WebProcesses(
        count=len(web.processes),
        silent=web.silent,
        restarts=web.restarts,
        resident_bytes=sum(process.rss_bytes for process in web.processes.values()),
    )


def own_figures() -> ProcessFigures:
    """The figures of the calling process."""
    return ProcessFigures(
        tasks=trio.lowlevel.current_statistics().tasks_living,
        fds=open_files(),
        rss_bytes=resident_bytes("self"),
        cpu_seconds=time.process_time(),
    )
