"""What operators ask, and who answers: `Server` is what the web of a process holds of the server behind it.

`Engine` (actors/engine.py) is a server whose parts are all in this process; `FrontEngine` (actors/fronts/front.py) is
one web process of several and asks the scheduler's process. There as here an `Observer` looks at the scheduler's own
tables. It has a memory only for what must stay the same between views: the tenants' numbers, and a sample of the
throughput for each second in which somebody looked.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final, Protocol

import trio

from ...protocol.engine_view import About, Limits, Sample, View, WebProcesses, WorkerView
from ...protocol.explanation import Explanation, Standing
from ...protocol.reports import FrontsReport, Health, ProcessFigures, ServerReport, WorkerFigures
from ...protocol.requests import Prompt
from ...protocol.settings import ServeSettings, model_name
from ...protocol.steps import Ready
from ..gateway.accounts import add_up
from ..gateway.gateway import Gateway
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


class Server(Protocol):
    """What the web of a process holds. Questions are for the whole server; they raise ApiError where none answers."""

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def gateway(self) -> Gateway:
        """Requests go in here. It is this process's own."""
        ...

    @property
    def model_name(self) -> str: ...

    @property
    def created(self) -> int:
        """The Unix time of the start."""
        ...

    @property
    def ready(self) -> Ready | None:
        """What the worker reported when it was last started."""
        ...

    @property
    def draining(self) -> bool:
        """New requests are refused, and those accepted go on."""
        ...

    def begin_drain(self) -> None: ...

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]: ...

    async def detokenize(self, ids: tuple[int, ...]) -> str: ...

    async def health(self) -> Health:
        """Whether a request sent now would be computed, from progress and not from good will."""
        ...

    async def report(self) -> ServerReport:
        """What /metrics and the ledger are made of."""
        ...

    async def about(self) -> About | None:
        """What a dashboard is told first, and again when there is another worker; None before the first."""
        ...

    async def view(self) -> View:
        """What a dashboard shows."""
        ...

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Where a request of this tenant is and why, by its id or its X-Request-Id; None for one not known here."""
        ...


class Observer:
    """Answers from the scheduler in this process; what the web has counted is collected where it is."""

    def __init__(
        self,
        settings: ServeSettings,
        *,
        state: SchedulerState,
        status: WorkerStatus,
        draining: Callable[[], bool],
        collect_web: Callable[[], Awaitable[FrontsReport]],
        process_of: ProcessOf = only_process,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._model_name = model_name(settings)
        self._state = state
        self._status = status
        self._draining = draining
        self._collect_web = collect_web
        self._process_of = process_of
        self._clock = clock
        self._started = clock()
        self._tenant = TenantNumbers()
        self._history: deque[Sample] = deque(maxlen=_SAMPLES)

    def health(self) -> Health:
        if self._draining():
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return self._status.health(self._clock())

    def standing(self, id: str) -> Standing | None:
        """Where a request stands in the scheduler; None where it is not there."""
        return self._state.standing(id, self._clock())

    async def report(self) -> ServerReport:
        web, status = await self._collect_web(), self._status
        return ServerReport(
            health=self.health(),
            scheduler=self._state.statistics(),
            worker=WorkerFigures(pid=status.pid, restarts=status.restarts, step_time=status.step_time.figures()),
            process=own_figures(),
            web=web,
        )

    def about(self) -> About | None:
        ready = self._status.ready
        if ready is None:
            return None
        return About(
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
        """The scheduler at one moment, after the web's counters were collected."""
        return self.view_with(await self._collect_web())

    def view_with(self, web: FrontsReport) -> View:
        now, state, status = self._clock(), self._state, self._status
        statistics, accounts = state.statistics(), add_up([web.accounts])
        health, pid = self.health(), status.pid
        counters = totals(statistics.totals, accounts, status)
        if not self._history or now - self._history[-1].time >= SAMPLE_SECONDS:
            self._history.append(Sample(now, counters.prefill_tokens, counters.generated_tokens))
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
    """Of the process that calls it."""
    return ProcessFigures(
        tasks=trio.lowlevel.current_statistics().tasks_living,
        fds=open_files(),
        rss_bytes=resident_bytes("self"),
        cpu_seconds=time.process_time(),
    )
