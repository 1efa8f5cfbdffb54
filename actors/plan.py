"""What the next step computes. No phases: a sequence has `computed` and `total` tokens, a step spends one token budget.

Running sequences first, in order, then the waiting ones that may join. A decoding sequence needs one token and keeps it
whatever else there is: prompts share what is left, so a long prompt never holds up a running stream. Continuous
batching, chunked prefill, prefix reuse and preemption by recompute all follow. Pure: no clock, no I/O; the same
sequences and blocks give the same plan.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

from ..protocol.settings import BLOCK_SIZE
from ..protocol.steps import Chunk, SequenceRecord
from .blocks import BlockPool, blocks_for
from .policies import DEFAULT_POLICY, Policy
from .prefix_keys import Key
from .queues import Queues
from .sequence import OrderKey, Sequence

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

    order: OrderKey
    kind: Blocked
    need: int
    free: int


class Plan:
    """One step's work, and what happened to whom on the way."""

    __slots__ = ("blocked", "chunks", "dropped", "new", "planned", "preempted", "prefill_tokens", "shortage", "started")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.new: list[SequenceRecord] = []
        self.dropped: list[int] = []  # known to the worker and preempted
        self.planned: dict[int, Sequence] = {}
        self.started: list[Sequence] = []  # admitted for the first time
        self.preempted = 0
        self.prefill_tokens = 0  # of prompts, and of what is computed again
        self.blocked: dict[int, Blocked] = {}  # why a sequence has no chunk; not named: "order"
        self.shortage: Shortage | None = None


def plan_step(queues: Queues, pool: BlockPool, limits: Limits, policy: Policy = DEFAULT_POLICY) -> Plan:
    """Plan one step: give chunks to sequences, move them between the queues, take and release blocks."""
    planner = _Planner(queues, pool, limits, policy)
    planner.park()
    planner.resume_parked()
    planner.note_prefixes()
    planner.make_way()
    planner.serve_running()
    planner.admit_waiting()
    for sequence in planner.plan.planned.values():
        publish_blocks(sequence, pool)  # later steps may read these blocks: steps run in order
    planner.plan.prefill_tokens = planner.prefill_budget - planner.budget
    return planner.plan


def cached_blocks(sequence: Sequence, pool: BlockPool) -> list[int]:
    """The blocks of its prefix that the cache has."""
    return pool.match(map(sequence.key, range(sequence.shareable_blocks)))


def parked_blocks(queues: Queues) -> int:
    """What parked sequences hold: who finds no other room gets it."""
    return sum(len(sequence.blocks) for sequence in queues.parked)


def missing_blocks(sequence: Sequence, cached: list[int], queues: Queues, pool: BlockPool) -> int:
    """How many blocks must become available before all its known tokens fit.

    One block for every running sequence is left alone: each may need its next one soon, and taking it would only
    lead to a preemption a few steps later.
    """
    wanted = blocks_for(sequence.read) - len(cached)
    return wanted + len(queues.running) - (pool.available - pool.idle(cached))


def blocks_short(sequence: Sequence, cached: list[int], queues: Queues, pool: BlockPool) -> tuple[int, int]:
    """Of one that waits for blocks: how many it needs beside the cached ones, and how many it would find.

    Those are fewer than it needs: of a step that has had to preempt, and of parked blocks that others share, it gets
    none whatever their number.
    """
    need = blocks_for(sequence.read) - len(cached)
    free = need - missing_blocks(sequence, cached, queues, pool) + parked_blocks(queues)
    return need, max(min(free, need - 1), 0)


def publish_blocks(sequence: Sequence, pool: BlockPool) -> None:
    """Offer its full blocks of computed and read tokens to the prefix cache, as far as others may read them."""
    full = min(sequence.computed // BLOCK_SIZE, sequence.cacheable_blocks)
    while sequence.published < full:
        pool.publish(sequence.blocks[sequence.published], sequence.key(sequence.published))
        sequence.published += 1


class _Planner:
    def __init__(self, queues: Queues, pool: BlockPool, limits: Limits, policy: Policy) -> None:
        self.plan = Plan()
        self.queues = queues
        self.pool = pool
        self.policy = policy
        self.rows = limits.rows
        self.max_step_tokens = limits.max_step_tokens
        self.budget = self.prefill_budget = 0  # for prompts, set when the decoding rows are known: the rest, the whole
        self.short_of_blocks = False
        self.computing: dict[Key, Sequence] = {}  # prompt blocks that running sequences will publish: the first of them

    def park(self) -> None:
        """Running sequences whose reader is behind give up their row, before anybody else looks for one."""
        for sequence in tuple(self.queues.running):
            if sequence.live.credit <= 0 and sequence.remaining > 0:
                self.queues.move(sequence, "parked")

    def resume_parked(self) -> None:
        """Parked sequences whose reader caught up get a row again; they hold blocks, so they go before waiting ones."""
        for sequence in tuple(self.queues.parked):
            if sequence.live.credit > 0 and len(self.queues.running) < self.rows:
                self.queues.move(sequence, "running")

    def note_prefixes(self) -> None:
        """Which prefixes are being computed, so that those who share them wait instead of computing them again."""
        if self.queues.waiting:
            for sequence in self.queues.running:
                self._note_prefix(sequence)

    def make_way(self) -> None:
        """Waiting sequences that are more urgent than the last running one join first, in its place if need be."""
        running = self.queues.running
        while running and (urgent := next((s for s in self.queues.waiting if not self._not_ready(s)), None)):
            if not self.policy.makes_way(running[-1], urgent):
                return
            cached = self._cached(urgent)
            if len(running) < self.rows and self._missing_blocks(urgent, cached) <= self._parked_blocks():
                self._join(urgent, cached)
            else:
                self._preempt(running[-1])

    def serve_running(self) -> None:
        """A chunk for every running sequence, as far as budget and blocks reach."""
        decoding = sum(1 for sequence in self.queues.running if sequence.remaining == 1)
        self.budget = self.prefill_budget = self.max_step_tokens - decoding
        for sequence in tuple(self.queues.running):
            remaining = sequence.remaining
            if remaining <= 0 or sequence.place != "running":
                continue  # waits for its last token to be read, or was preempted by an earlier turn of this loop
            if sequence.live.credit <= 0:
                self.queues.move(sequence, "parked")  # another choice of its request has taken the last of it
                continue
            if remaining > 1 and self.budget == 0:
                self.plan.blocked[sequence.id] = "budget"
                continue
            count = self._reserve(sequence, 1 if remaining == 1 else min(remaining, self.budget))
            if count <= 0:
                self.plan.blocked[sequence.id] = "blocks"
                continue
            if remaining > 1:
                self.budget -= count
            self._add_chunk(sequence, count)

    def admit_waiting(self) -> None:
        """In order, those that may join. The first that finds no place ends it: nobody overtakes a large one."""
        position = 0
        while position < len(self.queues.waiting):
            sequence = self.queues.waiting[position]
            if reason := self._not_ready(sequence):
                self.plan.blocked[sequence.id] = reason
                position += 1
                continue
            cached = self._cached(sequence)
            if reason := self._no_place(sequence, cached):
                self.plan.blocked[sequence.id] = reason
                self.plan.shortage = self._shortage(sequence, cached, reason)
                return
            self._join(sequence, cached)
            count = self._reserve(sequence, min(sequence.remaining, self.budget))
            self.budget -= count
            self._add_chunk(sequence, count)

    def _not_ready(self, sequence: Sequence) -> Blocked | None:
        """Why it cannot run yet, whatever room there is. Others may go before it meanwhile."""
        if sequence.live.credit <= 0:
            return "credit"
        if sequence.unread:
            return "unread"
        if self.computing and (shareable := sequence.shareable_blocks):
            if self._comes_earlier(sequence.key(shareable - 1), sequence):
                return "prefix"
            known = len(self._cached(sequence))
            if known < shareable and self._comes_earlier(sequence.key(known), sequence):
                return "prefix"
        return None

    def _comes_earlier(self, key: Key, sequence: Sequence) -> bool:
        """Whether a running sequence before it computes block `key`. Nobody waits for a less urgent one."""
        owner = self.computing.get(key)
        return owner is not None and owner.order < sequence.order

    def _no_place(self, sequence: Sequence, cached: list[int]) -> Blocked | None:
        """Why it cannot join this step; makes room by preempting parked sequences."""
        if len(self.queues.running) >= self.rows:
            return "rows"
        if self.budget == 0:
            return "budget"
        if self.short_of_blocks or self._missing_blocks(sequence, cached) > self._parked_blocks():
            return "blocks"
        while self._missing_blocks(sequence, cached) > 0:
            if not self.queues.parked:
                return "blocks"  # what they held was shared
            self._preempt(self.queues.parked[-1])
        return None

    def _shortage(self, sequence: Sequence, cached: list[int], kind: Blocked) -> Shortage:
        """In the numbers of `_no_place`, for those who ask why."""
        if kind == "blocks":
            return Shortage(sequence.order, kind, *blocks_short(sequence, cached, self.queues, self.pool))
        return Shortage(sequence.order, kind, 1 if kind == "rows" else sequence.remaining, 0)

    def _parked_blocks(self) -> int:
        return parked_blocks(self.queues)

    def _missing_blocks(self, sequence: Sequence, cached: list[int]) -> int:
        return missing_blocks(sequence, cached, self.queues, self.pool)

    def _cached(self, sequence: Sequence) -> list[int]:
        return cached_blocks(sequence, self.pool)

    def _join(self, sequence: Sequence, cached: list[int]) -> None:
        """Give it a row and the blocks of its prefix; a chunk comes afterwards."""
        self.pool.attach(cached)
        sequence.blocks = cached
        sequence.published = len(cached)
        sequence.computed = len(cached) * BLOCK_SIZE
        self.queues.move(sequence, "running")
        if not sequence.started:  # else it comes back after a preemption
            sequence.started = True
            sequence.cached_tokens = sequence.computed
            self.plan.started.append(sequence)
        self._note_prefix(sequence)

    def _reserve(self, sequence: Sequence, count: int) -> int:
        """Blocks for up to `count` more tokens, taken from victims if need be; returns how many tokens have room.

        The last in order finds no victim but itself. It keeps what it has and waits: those before it take its blocks
        when they need them.
        """
        needed = blocks_for(sequence.computed + count) - len(sequence.blocks)
        while self.pool.available < needed:
            self.short_of_blocks = True
            victim = self.policy.choose_victim(self.queues, self.plan.planned.keys())
            if victim is None or victim is sequence:
                break
            assert victim.id not in self.plan.planned, victim
            self._preempt(victim)
        room = (len(sequence.blocks) + self.pool.available) * BLOCK_SIZE - sequence.computed
        return min(count, room)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to waiting without KV; its published blocks stay cached, so little is computed twice."""
        self.queues.move(sequence, "waiting")
        if sequence.known:
            self.plan.dropped.append(sequence.id)
        forget_kv(sequence, self.pool)
        self.plan.preempted += 1

    def _add_chunk(self, sequence: Sequence, count: int) -> None:
        start, end = sequence.computed, sequence.computed + count
        taken = self.pool.take(blocks_for(end) - len(sequence.blocks))
        sequence.blocks.extend(taken)
        if not sequence.known:
            self.plan.new.append(sequence.record())
            taken = sequence.blocks
        sample = end == sequence.total
        self.plan.chunks.append(
            Chunk(
                sequence=sequence.id,
                start=start,
                count=count,
                blocks=tuple(taken),
                sample=sample,
                prompt_logprobs=sequence.wants_prompt_logprobs(start, end),
            )
        )
        self.plan.planned[sequence.id] = sequence
        sequence.known = True
        sequence.computed = end
        if sample:
            sequence.unread += 1
            sequence.live.unread += 1
            sequence.live.spent += 1

    def _note_prefix(self, sequence: Sequence) -> None:
        for block in range(sequence.published, sequence.prompt.full_blocks):
            key = sequence.key(block)
            owner = self.computing.get(key)
            if owner is None or sequence.order < owner.order:
                self.computing[key] = sequence


def forget_kv(sequence: Sequence, pool: BlockPool) -> None:
    """Release its blocks; it must be computed anew from its tokens."""
    pool.release(sequence.blocks)
    sequence.blocks = []
    sequence.published = sequence.computed = 0
    sequence.known = False


def distrust_kv(sequence: Sequence, pool: BlockPool) -> None:
    """What its blocks hold is suspect: nobody shall attach them, now or later."""
    pool.disown(sequence.blocks)
    sequence.published = len(sequence.blocks)
