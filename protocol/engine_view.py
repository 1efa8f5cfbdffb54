"""What the dashboard is told: frames of the WebSocket `/v1/dashboard`, JSON text, told apart by `type`.

`about` comes first and again whenever another worker is ready; `view` follows a few times a second. Counters only grow,
so that a reader makes rates from any two views; times are seconds of the server's clock. Nothing that a client wrote is
in here: a request is the last part of its id, a tenant is a number.
"""

from typing import Literal

from msgspec import Struct

from .errors import ErrorDetail
from .steps import MemoryPlan

RowState = Literal["prefill", "recompute", "decode", "parked"]
MAX_ROWS = 200  # in each of the two tables of a view; the rest is counted
MAX_CELLS = 1024  # of the map of KV blocks

# Owners in a cell of the map. Other owners are positive: the `request` of a row.
NOBODY = 0
SEVERAL = -1  # requests share it, none with more than half


class BatchRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice that has a row in the batch, or had one and is parked. All but `seconds` count tokens or blocks.

    Of its `total` tokens the first `prompt` are the prompt, the next `generated` are read and sent, and one or two more
    may be on their way. The KV of the first `computed` is in its blocks, or will be once the steps in flight are done.
    """

    sequence: int
    request: int  # a number for the request: its choices share it, and owners in the map are named by it
    id: str  # the last part of the request's id
    choice: int = 0
    tenant: int = 0  # 0 where no keys are configured
    priority: int = 0
    state: RowState
    prompt: int
    cached: int = 0  # prompt tokens that the prefix cache had when it first ran
    computed: int
    generated: int = 0
    limit: int  # prompt and generated tokens at which it ends at the latest
    blocks: int = 0
    seconds: float  # since its request arrived
    blocked: str = ""  # why the last plan had no tokens of it; usually none


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice that waits, and what for: `blocked` is the planner's predicate (actors/step_plan.py).

    Where it is `blocks`, the request wants `blocks_wanted` and finds `blocks_available`, those of parked rows among
    them, beside one that is kept back for every running row. Where it is `credit`, its reader owes room
    for `tokens_behind` tokens.
    """

    sequence: int
    request: int
    id: str
    choice: int = 0
    tenant: int = 0
    priority: int = 0
    prompt: int
    generated: int = 0  # more than none: it was preempted
    seconds: float
    blocked: str
    blocks_wanted: int = 0
    blocks_available: int = 0
    tokens_behind: int = 0


class BlockMap(Struct, frozen=True, kw_only=True):
    """All KV blocks in order, `blocks_per_cell` in a cell (fewer in the last). The lists have an entry per cell."""

    free: int
    cached: int
    owned: int
    total: int
    blocks_per_cell: int
    owner: list[int]  # who has more than half of it: a request's number, NOBODY or SEVERAL
    cell_owned: list[int]  # blocks, as also below
    cell_cached: list[int]


class Limits(Struct, frozen=True, kw_only=True):
    """What one step can take."""

    max_step_tokens: int
    max_running: int
    context_length: int


class Totals(Struct, frozen=True, kw_only=True):
    """Counters since the server's start. Seconds: the parts of all steps together."""

    steps: int
    prefill_tokens: int  # planned: the prompt's, and what is computed again after a preemption
    generated_tokens: int
    preemptions: int
    evictions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    model_seconds: float  # the forward pass
    worker_seconds: float  # in the worker, the forward pass included
    link_seconds: float  # from a step's turn to its answer, less its time in the worker
    plan_seconds: float  # the scheduler's: messages, plan, bookkeeping
    text_seconds: float  # the detokenizer's, and what it writes to sockets
    accepted: int
    finished: dict[str, int]
    refused: dict[str, int]


class HistogramCounts(Struct, frozen=True, kw_only=True):
    """Observations since the start: one count per bound (its bucket's upper end, in seconds) and one above them all."""

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
    resident_bytes: int  # 0 where the system does not tell


class Sample(Struct, frozen=True, array_like=True):
    """Counters of a moment that somebody watched."""

    time: float
    prefill_tokens: int
    generated_tokens: int


class About(Struct, frozen=True, kw_only=True, tag_field="type", tag="about"):
    """What does not change while a worker lives, and the throughput of the last minutes as far as it was watched."""

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
    history: list[Sample]


class View(Struct, frozen=True, kw_only=True, tag_field="type", tag="view"):
    """The engine at one moment."""

    time: float
    worker: WorkerView
    live: int  # requests accepted and unfinished, those included that are not tokenized yet
    running: int  # choices, as also below
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


class DashboardError(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The last frame of a socket that is closed for a reason."""

    error: ErrorDetail


ToDashboard = About | View | DashboardError
