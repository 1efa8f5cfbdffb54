"""What a plan is: the limits it keeps to, one step's work, and why somebody has none of it."""

from typing import Literal, NamedTuple

from msgspec import Struct

from ...protocol.steps import Chunk, SequenceRecord
from .sequence import Sequence

Blocked = Literal[
    "order",  # somebody before it is waiting for blocks, rows or budget
    "rows",  # max_running sequences have a place
    "blocks",  # not enough KV blocks
    "budget",  # the step's tokens are spent
    "credit",  # its reader is behind
    "prefix",  # another sequence is computing a prefix that it can share
    "unread",  # its last sampled token is still on its way
    "worker",  # no worker is ready
]


class Limits(Struct, frozen=True, kw_only=True):
    """What a worker can take in one step; of its Ready message."""

    max_step_tokens: int
    max_running: int
    context_length: int

    @property
    def rows(self) -> int:
        """A decoding sequence needs a token of every step, so there are never more rows than tokens."""
        return min(self.max_running, self.max_step_tokens)


class Shortage(NamedTuple):
    """The first waiting sequence that found no place, and the predicate: `need` was more than `free`."""

    sequence: Sequence
    kind: Blocked
    need: int
    free: int


class Plan:
    """One step's work, and what happened to whom on the way."""

    __slots__ = (
        "blocked", "chunks", "displaced", "dropped", "new", "planned", "preempted", "prefill_tokens", "shortage",
        "started",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.new: list[SequenceRecord] = []
        self.dropped: list[int] = []  # known to the worker and preempted
        self.planned: dict[int, Sequence] = {}
        self.started: list[Sequence] = []  # admitted for the first time
        self.preempted = 0
        self.displaced = 0  # gave their row to another tenant's
        self.prefill_tokens = 0  # of prompts, and of what is computed again
        self.blocked: dict[int, Blocked] = {}  # why a sequence has no chunk; not named: "order"
        self.shortage: Shortage | None = None
