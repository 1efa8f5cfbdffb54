"""Puts one view of the engine together from those who know: scheduler, worker status, and what the web has counted.

It has a memory of its own only for what must stay the same between views: the tenants' numbers, and a sample of the
throughput for each second in which somebody looked.
"""

from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from ...protocol.engine_view import About, Limits, Sample, View, WebProcesses, WorkerView
from ...protocol.steps import Ready
from ..gateway.accounts import Accounts
from ..scheduler.state import SchedulerState
from ..supervisor.worker_status import Health, WorkerStatus
from .engine_view import (
    ProcessOf,
    TenantNumbers,
    batch_rows,
    histogram_counts,
    only_process,
    owned_map,
    queue_rows,
    totals,
)
from .ledger import resident_bytes

SAMPLE_SECONDS: Final = 1.0
_SAMPLES: Final = 300  # five minutes of watching


class Viewer:
    """Takes views; does nothing between them."""

    def __init__(
        self,
        model_name: str,
        *,
        state: SchedulerState,
        status: WorkerStatus,
        health: Callable[[], Health],
        started: float,
        process: ProcessOf = only_process,
    ) -> None:
        self._model_name = model_name
        self._state = state
        self._status = status
        self._health = health
        self._started = started
        self._process = process
        self._tenant = TenantNumbers()
        self._history: deque[Sample] = deque(maxlen=_SAMPLES)

    def about(self, ready: Ready, now: float) -> About:
        """For a reader that begins, or whose worker is a new one; `ready` is what that worker reported."""
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
            uptime=now - self._started,
            history=list(self._history),
        )

    def view(self, now: float, accounts: Accounts, live: int, web: WebProcesses | None = None) -> View:
        """The engine at this moment; `accounts` and `live` requests of all its web processes together."""
        state, status = self._state, self._status
        statistics = state.statistics()
        health, pid = self._health(), status.pid
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
            live=live,
            running=statistics.running,
            parked=statistics.parked,
            waiting=statistics.waiting,
            waiting_by_reason=statistics.waiting_by_reason,
            rows=batch_rows(state, now, self._tenant, self._process),
            queue=queue_rows(state, now, self._tenant, self._process),
            blocks=owned_map(state),
            totals=counters,
            first_token=histogram_counts(accounts.first_token),
            between_tokens=histogram_counts(accounts.between_tokens),
            step_time=histogram_counts(status.step_time),
            web=web,
        )
