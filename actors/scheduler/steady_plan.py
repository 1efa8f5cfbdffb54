"""A faster `plan_step` for steps in which every running sequence gets all its tokens: nearly all while answers stream.

No sequence is waiting or parked, so none joins, resumes or makes way. All have credit, and tokens and blocks suffice,
so none gives up its row. The plan of 64 decoding sequences then takes 0.04 ms, and 0.18 ms in `plan_step`. A property
test checks that both give equal plans.
"""

from msgspec.structs import replace

from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import Chunk
from .blocks import BlockPool, blocks_for
from .queues import Queues
from .sequence import Sequence
from .step_plan import StepLimits, StepPlan


def plan_steady(queues: Queues, pool: BlockPool, limits: StepLimits) -> StepPlan | None:
    """The plan, or None if `plan_step` is needed; then nothing has changed."""
    if queues.waiting or queues.parked:
        return None
    plan = StepPlan(queues, pool, limits)
    chunks, goes_on = plan.chunks, list[Sequence]()
    growing, publishing = list[int](), list[Sequence]()  # places of those that need blocks
    longer = blocks = 0
    for sequence in queues.running:
        total, start = sequence.total, sequence.computed
        end = total if total < sequence.max_total else sequence.max_total - 1
        if start >= end or (sequence.unread and (total - start > 1 or sequence.waits_for_its_tokens)):
            continue  # its last token is not read yet
        live, count, sample = sequence.live, end - start, end == total
        if not sequence.known or live.granted <= live.spent:
            _undo(goes_on, chunks)
            return None
        if count > 1 or not sample:
            if not sequence.reads_prefix_cache:
                _undo(goes_on, chunks)  # its prompt may need log probabilities
                return None
            longer += count - 1
        if (count > 1 or not start % BLOCK_SIZE) and end > len(sequence.blocks) * BLOCK_SIZE:
            growing.append(len(chunks))
            blocks += blocks_for(end) - len(sequence.blocks)
        chunks.append(Chunk(sequence=sequence.id, start=start, count=count, blocks=(), sample=sample))
        goes_on.append(sequence)
        sequence.computed = end
        if sample:
            sequence.total = total + 1
            live.spent += 1
        if end // BLOCK_SIZE > sequence.published:
            publishing.append(sequence)
    if blocks > pool.available or (blocks and queues.limited) or len(chunks) + longer > limits.max_step_tokens:
        _undo(goes_on, chunks)
        return None
    for place in growing:
        sequence = goes_on[place]
        taken = tuple(pool.allocate(blocks_for(sequence.computed) - len(sequence.blocks)))
        sequence.blocks.extend(taken)
        chunks[place] = replace(chunks[place], blocks=taken)
    for sequence in publishing:
        sequence.publish_blocks(pool)
    if longer:
        plan.prefill_tokens = sum(chunk.count for chunk in chunks if chunk.count > 1)
    return plan


def _undo(planned: list[Sequence], chunks: list[Chunk]) -> None:
    for sequence, chunk in zip(planned, chunks, strict=True):
        sequence.computed = chunk.start
        if chunk.sample:
            sequence.total -= 1
            sequence.live.spent -= 1
