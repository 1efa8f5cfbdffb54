"""What the dashboard receives: frames of the WebSocket `/v1/dashboard`, JSON text, distinguished by `type`.

`about` comes first, and again whenever a new worker is ready; `view` follows a few times a second. Counters only grow,
so any two views give a rate. Times are seconds of the server's clock. No text from a client appears: a request is the
last part of its id, a tenant is a number.
"""

from typing import Literal

from msgspec import Struct

from .errors import ErrorDetail
from .steps import MemoryPlan

VIEW_SECONDS = 0.25  # from view to view
RowState = Literal["prefill", "recompute", "decode", "parked"]
MAX_ROWS = 200  # in each table of a view; the rest is only counted
MAX_CELLS = 1024  # in the map of KV blocks

# Owners in a cell of the map. Other owners are positive: the `request` of a row.
NOBODY = 0
SEVERAL = -1  # several requests, none with more than half


class BatchRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice that has a row in the batch, or had one and is parked. All but `seconds` count tokens or blocks.

    The first `prompt` tokens are the prompt; the next `generated` are read and sent; one or two more may be in flight.
    The KV of the first `computed` tokens is in its blocks, or will be when the steps in flight are done.
    """

    sequence: int
    request: int  # number of the request, shared by its choices; owners in the block map are named by it
    id: str  # the last part of the request's id
    choice: int = 0
    process: str = ""  # the web process that holds it, if there are several
    tenant: int = 0  # 0 if no keys are configured
    priority: int = 0
    state: RowState
    prompt: int
    cached: int = 0  # prompt tokens found in the prefix cache when it first ran
    computed: int
    generated: int = 0
    limit: int  # prompt and generated tokens, at most
    blocks: int = 0
    seconds: float  # since its request arrived
    blocked: str = ""  # why the last plan gave it no tokens; usually empty


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice that waits, and why: `blocked` is the planner's reason (an `Obstacle`, explanation.py).

    If the reason is `blocks`: it needs `blocks_wanted` and finds `blocks_available`. These include the blocks of parked
    rows, but not the one kept free for each running row. If it is `credit`: its reader is `tokens_behind` behind.
    """

    sequence: int
    request: int
    id: str
    choice: int = 0
    process: str = ""
    tenant: int = 0
    priority: int = 0
    prompt: int
    generated: int = 0  # above 0: it was preempted
    seconds: float
    blocked: str
    blocks_wanted: int = 0
    blocks_available: int = 0
    tokens_behind: int = 0


class BlockMap(Struct, frozen=True, kw_only=True):
    """All KV blocks in order, `blocks_per_cell` per cell (fewer in the last). The lists have one entry per cell."""

    free: int
    cached: int
    owned: int
    total: int
    blocks_per_cell: int
    owner: list[int]  # of more than half the cell: a request's number, NOBODY or SEVERAL
    cell_owned: list[int]  # in blocks, as below
    cell_cached: list[int]


class Limits(Struct, frozen=True, kw_only=True):
    """What one step can take."""

    max_step_tokens: int
    max_running: int
    context_length: int


class Totals(Struct, frozen=True, kw_only=True):
    """Counters since the server's start. Seconds are sums over all steps."""

    steps: int
    prefill_tokens: int  # planned: of prompts, and recomputed after preemptions
    generated_tokens: int
    preemptions: int
    evictions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    model_seconds: float  # the forward pass
    worker_seconds: float  # in the worker, including the forward pass
    link_seconds: float  # from a step's turn to its answer, minus its time in the worker
    plan_seconds: float  # in the scheduler: messages, plan, bookkeeping
    text_seconds: float  # in the detokenizer, including its writes to sockets
    accepted: int
    finished: dict[str, int]
    refused: dict[str, int]


class HistogramCounts(Struct, frozen=True, kw_only=True):
    """Observations since the start: one count per bound (a bucket's upper end, in seconds), and one above them all."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float


class WorkerView(Struct, frozen=True, kw_only=True):
    """The worker process, and whether a request sent now would be computed."""

    ready: bool
    status: str
    reason: str
    pid: int | None
    restarts: int
    steps_in_flight: int
    step_age: float  # seconds that the oldest of them has run
    resident_bytes: int  # 0 if the system does not report it


class WebProcesses(Struct, frozen=True, kw_only=True):
    """The web processes of a server that has several."""

    count: int
    silent: int  # did not answer in time: their last figures count
    restarts: int
    resident_bytes: int  # of all of them, without the scheduler's process


class RateSample(Struct, frozen=True, array_like=True):
    """Counters at one moment while somebody watched."""

    time: float
    prefill_tokens: int
    generated_tokens: int


class AboutEngine(Struct, frozen=True, kw_only=True, tag_field="type", tag="about"):
    """What does not change while a worker lives, and the throughput of the last minutes, as far as it was sampled."""

    model: str
    architecture: str
    parameters: int
    device: str
    dtype: str
    quantize: str
    kv_cache_dtype: str
    version: str
    memory: MemoryPlan
    limits: Limits
    uptime: float
    history: list[RateSample]


class View(Struct, frozen=True, kw_only=True, tag_field="type", tag="view"):
    """The engine at one moment."""

    time: float
    worker: WorkerView
    live: int  # requests accepted and unfinished, including those not tokenized yet
    running: int  # choices, as below
    parked: int
    waiting: int
    waiting_by_reason: dict[str, int]
    rows: list[BatchRow]  # running ones first; MAX_ROWS at most
    queue: list[QueueRow]  # in the planner's order; MAX_ROWS at most
    blocks: BlockMap
    totals: Totals
    first_token: HistogramCounts
    between_tokens: HistogramCounts
    step_time: HistogramCounts
    web: WebProcesses | None = None  # None if one process does everything


class DashboardError(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The last frame before the server closes a socket for a reason."""

    error: ErrorDetail


ToDashboard = AboutEngine | View | DashboardError
