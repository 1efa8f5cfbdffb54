"""Why a request is where it is: what GET /v1/requests/{id}, `X-Triolet-Explain` and the WebSocket's `explain` answer.

`null` means unknown or not reached. The numbers are those that the planner compared when it planned its last step.
"""

from typing import Literal

from msgspec import Struct

from .events import FinishReason, Usage

State = Literal["tokenizing", "compiling", "waiting", "prefill", "decode", "parked", "finished"]
Obstacle = Literal[
    "order",  # a request before it does not fit: `first` says why, and the numbers are that request's
    "step",  # the next step: it came after the last one was planned
    "share",  # its API key's turn: another key was served less, or took this request's row
    "rows",  # all rows of the batch are taken (--max-running)
    "blocks",  # not enough KV blocks (--kv-cache-memory)
    "key",  # its API key's other requests hold what it may have of the KV cache (kv_tokens)
    "budget",  # the step's tokens are spent (--max-step-tokens)
    "credit",  # its reader is behind
    "grammar",  # the worker is building the grammar that its answer must match
    "adapter",  # the worker is loading its LoRA adapter
    "suspect",  # a worker died computing it: it is computed alone, between others' steps, until it is cleared
    "prefix",  # another request is computing a prefix that it will share
    "unread",  # its last token, or one of another beam, is still on its way from the worker
    "worker",  # no worker is ready
]


class Holders(Struct, frozen=True, kw_only=True):
    """How many choices hold what is needed. `yours` are those of the same API key."""

    running: int
    parked: int
    yours: int


class FairShare(Struct, frozen=True, kw_only=True):
    """Its API key compared with the others: the least served goes first. A key keeps its equal share of rows."""

    ahead: int  # tokens served beyond those of the key whose turn it is; an output token counts as two
    rows: int  # of the batch that it holds
    keys: int  # with requests in the scheduler, including its own


class BlockedOn(Struct, frozen=True, kw_only=True):
    """What kept it out of the last step: it needs `need` of `unit`, and `free` of `total` were available."""

    kind: Obstacle
    first: Obstacle | None = None
    reason: str | None = None  # of "worker": what happened to it, and how far the next one is
    unit: Literal["rows", "blocks", "tokens"] | None = None
    need: int | None = None
    free: int | None = None
    total: int | None = None
    holders: Holders | None = None
    share: FairShare | None = None


class PrefillProgress(Struct, frozen=True, kw_only=True):
    """Tokens of the prompt in steps already planned. After a preemption both numbers include the answer so far."""

    computed: int
    total: int


class Standing(Struct, frozen=True, kw_only=True):
    """Where a request is in the scheduler. `state` is that of its most advanced unfinished choice."""

    state: State
    choices: dict[State, int]  # unfinished ones
    position: int | None = None  # in the queue; 1 is next
    blocked_on: BlockedOn | None = None
    prefill: PrefillProgress | None = None
    eta_ms: int | None = None  # estimated time to its first step, from the rate at which earlier requests began


class TenantShare(Struct, frozen=True, kw_only=True):
    """Unfinished requests of the API key, and how many it may have at the current load of the other keys."""

    used: int
    limit: int


class Timeline(Struct, frozen=True, kw_only=True):
    """`arrived` in Unix time, the others in seconds after it."""

    arrived: float
    tokenized: float | None = None
    started: float | None = None  # its first step was planned
    first_token: float | None = None
    finished: float | None = None


class Explanation(Struct, frozen=True, kw_only=True):
    """The whole answer. `id` is the server's name for the request, `request_id` the X-Request-Id it came with."""

    id: str
    request_id: str
    state: State
    choices: dict[State, int]
    position: int | None
    blocked_on: BlockedOn | None
    prefill: PrefillProgress | None
    eta_ms: int | None
    tenant: TenantShare
    usage: Usage
    timeline: Timeline
    finish_reason: FinishReason | None
    error: str | None  # a code of protocol.errors
