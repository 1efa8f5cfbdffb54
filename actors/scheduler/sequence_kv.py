"""A sequence's KV blocks: what it would find in the cache, what it lacks, what it offers to others and gives back."""

from ...protocol.settings import BLOCK_SIZE
from .blocks import BlockPool, blocks_for
from .queues import Queues
from .sequence import Sequence


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
