"""One step's work while it is planned. Only this module moves rows, blocks and chunks between sequences.

`plan.py` decides which sequences get them.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from msgspec import Struct

from ...protocol.explanation import Obstacle
from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import Chunk, SequenceRecord
from .blocks import BlockPool, blocks_for
from .fair_share import choose_victim
from .prefix_keys import SharedPrompt
from .queues import Queues, TenantQueue
from .sequence import Sequence


class StepLimits(Struct, frozen=True, kw_only=True):
    """What a worker can compute in one step; from its Ready message."""

    max_step_tokens: int
    max_running: int
    context_length: int

    @property
    def rows(self) -> int:
        """Every decoding sequence needs one token per step, so there are never more rows than tokens."""
        return min(self.max_running, self.max_step_tokens)


class StepTurn(NamedTuple):
    """Who may run in a step: one alone, or all but those that are `apart`.

    What those that may not run hold may be taken from them, except from those that are `kept`.
    """

    only: Sequence | None = None
    apart: Container[int] = ()
    kept: Container[int] = ()

    def may_run(self, sequence: Sequence) -> bool:
        return sequence.id not in self.apart if self.only is None else sequence is self.only


EVERYBODY: Final = StepTurn()


class Shortage(NamedTuple):
    """The first waiting sequence that did not fit, and why: `need` was more than `free`."""

    sequence: Sequence
    kind: Obstacle
    need: int
    free: int


class StepPlan:
    """What the step computes, what happened to sequences on the way, and what is left of the step's tokens."""

    __slots__ = (
        "blocked", "budget", "chunks", "copies", "displaced", "dropped", "full", "limits", "new", "planned", "pool",
        "preempted", "prefill_tokens", "prompt_sources", "queues", "short_of_blocks", "shortage", "started",
        "turn",
    )  # fmt: skip

    def __init__(self, queues: Queues, pool: BlockPool, limits: StepLimits, turn: StepTurn = EVERYBODY) -> None:
        self.queues = queues
        self.turn = turn
        self.pool = pool
        self.limits = limits
        self.chunks: list[Chunk] = []
        self.new: list[SequenceRecord] = []
        self.copies: dict[int, int] = {}  # KV blocks to copy before the chunks run: target -> source
        self.dropped: list[int] = []  # preempted sequences that the worker must forget
        self.planned: dict[int, Sequence] = {}  # those with a chunk
        self.started: list[Sequence] = []  # admitted for the first time
        self.preempted = 0
        self.displaced = 0  # sequences whose row went to another tenant's
        self.budget = 0  # tokens left for prompts, set when the decoding rows are known
        self.prefill_tokens = 0  # of prompts, and recomputed ones
        self.blocked: dict[int, Obstacle] = {}  # why a sequence has no chunk; "order" if not in here
        self.full: set[TenantQueue] = set()  # tenants whose next sequence would hold more blocks than they may
        self.shortage: Shortage | None = None
        self.short_of_blocks = False
        # Per prompt, a choice whose KV an earlier step computed: copies run before the chunks of their step.
        self.prompt_sources: dict[SharedPrompt, Sequence] = {}

    def join(self, sequence: Sequence, cached: list[int]) -> None:
        """Give a waiting sequence a row and the cached blocks of its prefix. Its chunk comes afterwards."""
        self.pool.attach(cached)
        sequence.blocks = cached
        sequence.published = len(cached)
        sequence.computed = len(cached) * BLOCK_SIZE
        self._copy_prompt_end(sequence)
        self.queues.move(sequence, "running")
        if not sequence.started:  # otherwise it comes back after a preemption
            sequence.started = True
            sequence.cached_tokens = sequence.computed
            self.started.append(sequence)

    def _copy_prompt_end(self, sequence: Sequence) -> None:
        """Copy the last block of its prompt from another choice, if there is one, instead of computing it again.

        The source block may hold generated tokens after the prompt. They are masked until the sequence overwrites
        them. The plan keeps a reference to the block until `release_sources`: copies of a step run at the same time, so
        the block must not become the target of another copy.
        """
        if (source := self.prompt_sources.get(sequence.prompt)) is None:
            return
        end = sequence.copied_end
        place = end // BLOCK_SIZE  # of the block that is copied: those before it must be there, and none behind it
        if not end or len(sequence.blocks) != place or not self.pool.available:
            return
        block = source.blocks[place]
        self.pool.attach([block])
        (target,) = self.pool.allocate(1)
        self.copies[target] = block
        sequence.blocks.append(target)
        sequence.computed = end

    def release_sources(self) -> None:
        """Called when all copies are planned: later steps may write to these blocks."""
        self.pool.release(list(self.copies.values()))

    def displace(self, sequence: Sequence) -> None:
        """Park it, since another sequence takes its row. It keeps its KV and gets the next free row."""
        self.queues.move(sequence, "parked")
        self.displaced += 1

    def preempt(self, sequence: Sequence) -> None:
        """Send it back to waiting without KV. Its published blocks stay cached, so little is computed twice."""
        self.queues.move(sequence, "waiting")
        if sequence.known:
            self.dropped.append(sequence.id)
        if self.prompt_sources.get(sequence.prompt) is sequence:
            del self.prompt_sources[sequence.prompt]
        self.pool.release([self.copies.pop(block) for block in sequence.blocks if block in self.copies])
        sequence.forget_kv(self.pool)
        self.preempted += 1

    def reserve(self, sequence: Sequence, count: int) -> int:
        """Make room for up to `count` more tokens, preempting others if necessary; returns how many fit.

        The last in order could only preempt itself. It keeps its blocks and waits: those before it take them if they
        need them.
        """
        needed = blocks_for(sequence.computed + count) - len(sequence.blocks)
        if needed > 0 and not self.make_own_room(sequence, needed):
            self.blocked[sequence.id] = "key"
            return 0
        while self.pool.available < needed:
            self.short_of_blocks = True
            victim = choose_victim(self.queues, self.planned.keys(), self.turn.kept)
            if victim is None or victim is sequence:
                break
            assert victim.id not in self.planned, victim
            self.preempt(victim)
        room = (len(sequence.blocks) + self.pool.available) * BLOCK_SIZE - sequence.computed
        return min(count, room)

    def make_own_room(self, sequence: Sequence, wanted: int) -> bool:
        """Whether its tenant may hold so many more blocks. For a running sequence, its tenant's parked ones and those
        behind it are preempted as far as needed; for one that joins, those that are parked for their reader."""
        queues, tenant = self.queues, self.queues.tenant_of(sequence)
        if tenant.most_blocks is None:
            return True
        joins = sequence.place == "waiting"
        parked = [one for one in queues.parked if one.id not in self.turn.kept and (one.stalled or not joins)]
        behind = [one for one in queues.running if one.order > sequence.order and one.id not in self.planned]
        victims = [one for one in (*([] if joins else behind), *parked) if queues.tenant_of(one) is tenant]
        held = sum(len(one.blocks) for one in (*queues.running, *queues.parked) if queues.tenant_of(one) is tenant)
        while held + wanted > tenant.most_blocks and victims:
            victim = victims.pop()
            held -= len(victim.blocks)
            self.preempt(victim)
        return held + wanted <= tenant.most_blocks

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Put its next `count` tokens into the step."""
        start, end = sequence.computed, sequence.computed + count
        blocks = self.pool.allocate(blocks_for(end) - len(sequence.blocks))
        sequence.blocks.extend(blocks)
        if not sequence.known:
            self.new.append(sequence.record())
            blocks = sequence.blocks
        sample = end == sequence.total
        self.chunks.append(
            Chunk(
                sequence=sequence.id,
                start=start,
                count=count,
                blocks=tuple(blocks),
                sample=sample,
                prompt_logprobs=sequence.wants_prompt_logprobs(start, end),
            )
        )
        self.planned[sequence.id] = sequence
        sequence.known = True
        sequence.computed = end
        if sample and not sequence.pooled:  # that one ends with its vector
            sequence.total += 1
            sequence.live.spent += 1
