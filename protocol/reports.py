"""What processes tell about themselves when operators ask: health, figures of each process, and those of all together.

They cross the links between the scheduler's process and the web processes, and are made the same way where there is
one process. /metrics and the ledger are rendered from a `ServerReport`.
"""

from typing import Literal

from msgspec import Struct

WorkerState = Literal["loading", "ready", "restarting", "failed"]


class Health(Struct, frozen=True, kw_only=True):
    """The answer to a health probe: `status` in a word, `reason` in a sentence."""

    ready: bool
    status: str
    reason: str


class HistogramFigures(Struct, frozen=True, array_like=True):
    """Observations per bucket, and their sum."""

    counts: tuple[int, ...]
    sum: float


Figures = dict[str, int | float | dict[str, int] | HistogramFigures]  # the gateway's counters by name


class BlockCounts(Struct, frozen=True, kw_only=True):
    """The ledger of a pool of KV blocks; `free + cached + owned == total`."""

    free: int
    cached: int
    owned: int
    total: int


class SchedulerTotals(Struct, kw_only=True):
    """Counters that only grow, for as long as the scheduler's process lives."""

    steps: int = 0  # answered
    model_seconds: float = 0.0  # in the forward pass
    plan_seconds: float = 0.0  # in the scheduler, including messages
    prompt_tokens: int = 0  # of choices, counted when they first ran
    prefill_tokens: int = 0  # planned: uncached prompt tokens, and recomputed ones
    generated_tokens: int = 0  # kept ones: including stop tokens, without those sampled past the end
    wasted_tokens: int = 0  # sampled past the end of their sequence, by steps in flight
    prefix_query_tokens: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_tokens: int = 0
    preemptions: int = 0  # sequences that lost their KV, including by lost workers
    displaced: int = 0  # sequences parked because another tenant's took their row; they keep their KV
    evictions: int = 0  # cached blocks that were reused for other content
    worker_losses: int = 0
    device_allocations: int = 0  # by the present worker since it was ready; must stay 0
    device_compilations: int = 0


class SchedulerStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot; `waiting_by_reason` counts waiting sequences by the planner's reason."""

    worker_ready: bool
    requests: int
    running: int
    parked: int
    waiting: int
    waiting_by_reason: dict[str, int]
    steps_in_flight: int
    blocks: BlockCounts
    totals: SchedulerTotals


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """What the supervisor knows of its worker."""

    pid: int | None
    restarts: int
    step_time: HistogramFigures


class ProcessFigures(Struct, frozen=True, kw_only=True):
    """One of the server's processes."""

    tasks: int
    fds: int
    rss_bytes: int
    cpu_seconds: float


class FrontReport(Struct, frozen=True, kw_only=True):
    """One web process: its unfinished requests, everything it has counted, and itself."""

    live: int
    accounts: Figures
    process: ProcessFigures


class FrontsReport(Struct, frozen=True, kw_only=True):
    """What all of the web has counted; `accounts` are also those of web processes that have ended."""

    live: int
    accounts: Figures
    processes: dict[str, ProcessFigures] | None = None  # of the web; None where it is in the scheduler's process
    silent: int = 0  # did not answer in time: their last figures are counted
    restarts: int = 0


class ServerReport(Struct, frozen=True, kw_only=True):
    """The whole server: the scheduler, its worker, its process, and the web."""

    health: Health
    scheduler: SchedulerStatistics
    worker: WorkerFigures
    process: ProcessFigures
    web: FrontsReport


class Ledger(Struct, frozen=True, kw_only=True):
    """For /internal/ledger and tests that look for leaks, of all processes together; `children` are processes too.

    free + cached + owned == total, always; the rest returns to its idle value when all requests have ended.
    """

    kv_blocks: BlockCounts
    requests: int
    tasks: int
    fds: int
    children: int
    rss_bytes: int
