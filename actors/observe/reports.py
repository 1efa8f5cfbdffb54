"""What processes tell about themselves when they are asked, and what the whole server is made of it. No waiting here.

A front that has gone keeps its last report: what it had counted stays counted, so no counter of the server runs
backwards. What it counted after that report is lost with it.
"""

import time
from collections.abc import Iterable

import trio
from msgspec import Struct

from ...protocol.fronts import HistogramFigures
from ..gateway.accounts import Accounts, Figures
from ..scheduler.blocks import BlockCounts
from ..scheduler.statistics import SchedulerStatistics
from ..supervisor.worker_status import Health
from .ledger import Ledger, open_files, resident_bytes


class ProcessFigures(Struct, frozen=True, kw_only=True):
    """One of the server's processes."""

    tasks: int
    fds: int
    rss_bytes: int
    cpu_seconds: float


class FrontReport(Struct, frozen=True, kw_only=True):
    """A front's answer: its unfinished requests, everything it has counted, and itself."""

    live: int
    accounts: Figures
    process: ProcessFigures


class FrontsReport(Struct, frozen=True, kw_only=True):
    """What all fronts together say; `accounts` are also those of fronts that were."""

    live: int
    accounts: Figures
    processes: dict[str, ProcessFigures]
    silent: int  # did not answer in time: their last figures are counted
    restarts: int


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """What the supervisor knows of its worker."""

    pid: int | None
    restarts: int
    step_time: HistogramFigures


class ServerReport(Struct, frozen=True, kw_only=True):
    """The whole server's answer: what its fronts say, and the scheduler's process beside them."""

    health: Health
    scheduler: SchedulerStatistics
    worker: WorkerFigures
    live: int
    accounts: Figures
    processes: dict[str, ProcessFigures]
    silent: int
    front_restarts: int


def own_figures() -> ProcessFigures:
    return ProcessFigures(
        tasks=trio.lowlevel.current_statistics().tasks_living,
        fds=open_files(),
        rss_bytes=resident_bytes("self"),
        cpu_seconds=time.process_time(),
    )


def add_up(accounts: Iterable[Figures]) -> Figures:
    total = Accounts()
    for figures in accounts:
        total.absorb(figures)
    return total.figures()


def whole_ledger(report: ServerReport) -> Ledger:
    """The ledger of all processes together; `children` are the fronts and the worker."""
    blocks: BlockCounts = report.scheduler.blocks
    processes = report.processes.values()
    return Ledger(
        kv_blocks=blocks,
        requests=report.live,
        tasks=sum(process.tasks for process in processes),
        fds=sum(process.fds for process in processes),
        children=len(processes) - 1 + (report.worker.pid is not None),
        rss_bytes=sum(process.rss_bytes for process in processes),
    )
