"""What processes tell about themselves when operators ask: health, figures of each process, and those of all together.

They cross the links between the scheduler's process and the web processes, and are made the same way where there is
one process. /metrics and the ledger are rendered from a `ServerReport`.
"""

from typing import Literal

from msgspec import Struct, field

WorkerState = Literal["loading", "ready", "restarting", "failed"]


class Loading(Struct, frozen=True, kw_only=True):
    """How far a worker has loaded the model: `done` of `total` units of what it does now; `share` is their quotient.

    Loading has several stages of unknown length, so there is no share of the whole.
    """

    stage: str
    done: int
    total: int
    share: float
    seconds_left: float | None = None  # as long as the last load took, else at this stage's pace; None: unknown


class Health(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a health probe: `status` in a word, `reason` in a sentence."""

    ready: bool
    status: str
    reason: str
    loading: Loading | None = None  # while a worker loads the model, also again after the last one was lost
    models: "dict[str, Health]" = field(default_factory=dict)  # of a server that has several


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
    convicted: int = 0  # requests that failed because they kill workers
    excused_losses: int = 0  # workers that died of these, and do not count towards the restarts
    device_allocations: int = 0  # by the present worker since it was ready; must stay 0
    device_compilations: int = 0


class AdapterFigures(Struct, frozen=True, kw_only=True):
    """The worker's LoRA adapters, of which it holds `most` at once."""

    most: int = 0
    loaded: int = 0
    loading: int = 0  # the worker reads them
    waiting: int = 0  # for a place
    loads: int = 0  # ordered since the start
    running_names: tuple[str, ...] = ()  # loaded, and used by a request; at most `most`
    waiting_names: tuple[str, ...] = ()  # not loaded, and wanted by one; at most `most`


class SchedulerStatistics(Struct, frozen=True, kw_only=True):
    """A snapshot; `waiting_by_reason` counts waiting sequences by the planner's reason."""

    worker_ready: bool
    requests: int
    running: int
    parked: int
    waiting: int
    waiting_by_reason: dict[str, int]
    background_running: int = 0  # choices of batches' lines that hold KV blocks; not in the counts above
    background_waiting: int = 0
    steps_in_flight: int
    blocks: BlockCounts
    totals: SchedulerTotals
    adapters: AdapterFigures = AdapterFigures()


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


class KeptFigures(Struct, kw_only=True):
    """The answers kept for clients that lost their WebSocket, now."""

    answers: int = 0
    bytes: int = 0


class BatchFigures(Struct, kw_only=True):
    """The batches of a server: those that have not ended, and lines since the start."""

    open: int = 0
    lines_waiting: int = 0  # of the batches that run, with those that run now
    lines_completed: int = 0
    lines_failed: int = 0


class FrontReport(Struct, frozen=True, kw_only=True):
    """One web process: its unfinished requests, everything it has counted, and itself."""

    live: int
    accounts: Figures
    process: ProcessFigures
    kept: KeptFigures = field(default_factory=KeptFigures)


class FrontsReport(Struct, frozen=True, kw_only=True):
    """What all of the web has counted; `accounts` are also those of web processes that have ended."""

    live: int
    accounts: Figures
    kept: KeptFigures = field(default_factory=KeptFigures)
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
    batches: BatchFigures = field(default_factory=BatchFigures)


class Ledger(Struct, frozen=True, kw_only=True):
    """For /internal/ledger and tests that look for leaks, of all processes together; `children` are processes too.

    free + cached + owned == total, always; the rest returns to its idle value when all requests have ended.
    """

    kv_blocks: BlockCounts
    requests: int
    kept_answers: int  # until their time is over
    tasks: int
    fds: int
    children: int
    rss_bytes: int
