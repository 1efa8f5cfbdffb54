"""The moves of one step: rows, blocks and chunks change hands here and nowhere else while it is planned.

Who moves is decided by those that call: `plan.py` for the running, `joining.py` for the waiting.
"""

from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import Chunk
from .blocks import BlockPool, blocks_for
from .fair_share import choose_victim
from .queues import Queues
from .sequence import Sequence
from .sequence_kv import forget_kv
from .step_plan import Limits, Plan


class Moves:
    """A plan in the making, and what is left of the step's tokens."""

    def __init__(self, queues: Queues, pool: BlockPool, limits: Limits) -> None:
        self.plan = Plan()
        self.queues = queues
        self.pool = pool
        self.rows = limits.rows
        self.budget = 0  # for prompts, set when the decoding rows are known
        self.short_of_blocks = False

    def join(self, sequence: Sequence, cached: list[int]) -> None:
        """Give a waiting one a row and the blocks of its prefix; a chunk comes afterwards."""
        self.pool.attach(cached)
        sequence.blocks = cached
        sequence.published = len(cached)
        sequence.computed = len(cached) * BLOCK_SIZE
        self.queues.move(sequence, "running")
        if not sequence.started:  # else it comes back after a preemption
            sequence.started = True
            sequence.cached_tokens = sequence.computed
            self.plan.started.append(sequence)

    def displace(self, sequence: Sequence) -> None:
        """Its row is needed by one that has a better right to it; it keeps its KV and comes back with the next row."""
        self.queues.move(sequence, "parked")
        self.plan.displaced += 1

    def preempt(self, sequence: Sequence) -> None:
        """Back to waiting without KV; its published blocks stay cached, so little is computed twice."""
        self.queues.move(sequence, "waiting")
        if sequence.known:
            self.plan.dropped.append(sequence.id)
        forget_kv(sequence, self.pool)
        self.plan.preempted += 1

    def reserve(self, sequence: Sequence, count: int) -> int:
        """Blocks for up to `count` more tokens, taken from victims if need be; returns how many tokens have room.

        The last in order finds no victim but itself. It keeps what it has and waits: those before it take its blocks
        when they need them.
        """
        needed = blocks_for(sequence.computed + count) - len(sequence.blocks)
        while self.pool.available < needed:
            self.short_of_blocks = True
            victim = choose_victim(self.queues, self.plan.planned.keys())
            if victim is None or victim is sequence:
                break
            assert victim.id not in self.plan.planned, victim
            self.preempt(victim)
        room = (len(sequence.blocks) + self.pool.available) * BLOCK_SIZE - sequence.computed
        return min(count, room)

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Its next `count` tokens become part of the step."""
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
            sequence.total += 1
            sequence.live.spent += 1
