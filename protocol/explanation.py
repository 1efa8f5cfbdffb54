"""Why a request is where it is: what GET /v1/requests/{id}, `X-Triolet-Explain` and the WebSocket's `explain` answer.

`null` means not known, or not reached. Numbers are those that the planner compared when it planned its last step.
"""

from typing import Literal

from msgspec import Struct

from .events import FinishReason, Usage

State = Literal["tokenizing", "waiting", "prefill", "decode", "parked", "finished"]
Obstacle = Literal[
    "order",  # somebody before it waits for a place: `first` says for what, and the numbers are that one's
    "step",  # nothing: it came after the last step was planned
    "share",  # its API key was served more than another, whose turn it is, or whose request has its row
    "rows",  # all places of the batch are taken (--max-running)
    "blocks",  # not enough KV blocks (--kv-cache-memory)
    "budget",  # the step's tokens are spent (--max-step-tokens)
    "credit",  # its reader is behind
    "prefix",  # another request is computing a prefix that it will share
    "unread",  # its last token is still on its way from the worker
    "worker",  # no worker is ready
]


class Holders(Struct, frozen=True, kw_only=True):
    """The choices that hold what is wanted. `yours` are those of the same API key."""

    running: int
    parked: int
    yours: int


class Share(Struct, frozen=True, kw_only=True):
    """Its API key beside the others: the one that was served least goes first, and an equal share of rows is safe."""

    ahead: int  # tokens that it was served more than the one whose turn it is; an output token counts as two
    rows: int  # of the batch that it has
    keys: int  # with requests in the scheduler, its own among them


class BlockedOn(Struct, frozen=True, kw_only=True):
    """What kept it out of the last step: `need` of `unit`, where `free` of `total` could be had."""

    kind: Obstacle
    first: Obstacle | None = None
    unit: Literal["rows", "blocks", "tokens"] | None = None
    need: int | None = None
    free: int | None = None
    total: int | None = None
    holders: Holders | None = None
    share: Share | None = None


class PrefillProgress(Struct, frozen=True, kw_only=True):
    """Tokens of the prompt (and, after a preemption, of the answer so far) whose step has been planned."""

    computed: int
    total: int


class Standing(Struct, frozen=True, kw_only=True):
    """Where a request stands in the scheduler. With several choices, `state` is that of the foremost unfinished one."""

    state: State
    choices: dict[State, int]  # unfinished ones
    position: int | None = None  # in the queue; 1 is next
    blocked_on: BlockedOn | None = None
    prefill: PrefillProgress | None = None
    eta_ms: int | None = None  # until its first step, from the rate at which those before it began


class TenantShare(Struct, frozen=True, kw_only=True):
    """Unfinished requests of the API key, and how many it may have while everybody else has what they have."""

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
