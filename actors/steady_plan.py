"""The plan of a step that has room for all tokens of every running sequence: nearly every one while answers stream.

What `plan_step` would plan, without its questions: nobody waits or is parked, so nobody joins, resumes or makes way;
everybody has credit, and the step room and blocks for all, so nobody gives up a row. A test holds the two equal.
"""

from ..protocol.settings import BLOCK_SIZE
from ..protocol.steps import Chunk
from .blocks import BlockPool, blocks_for
from .queues import Queues
from .sequence import Sequence
from .sequence_kv import publish_blocks
from .step_plan import Plan


def plan_steady(queues: Queues, pool: BlockPool, max_step_tokens: int) -> Plan | None:
    """The plan, or None where it takes `plan_step`; then nothing has changed."""
    if queues.waiting or queues.parked:
        return None
    goes_on: list[tuple[Sequence, int, int, bool]] = []  # its first token, the one after its last, whether it samples
    tokens = blocks = 0
    for sequence in queues.running:
        total, last = sequence.prompt_tokens + len(sequence.generated) + sequence.unread, sequence.max_total - 1
        start, end = sequence.computed, total if total < last else last
        if start >= end:
            continue  # waits for its last token to be read
        live = sequence.live
        # The choices of a request share its credit.
        if not sequence.known or live.granted - live.spent < len(live.choices):
            return None
        if not sequence.reads_prefix_cache and (end - start > 1 or end < total):
            return None  # its prompt may have to be scored
        tokens += end - start
        if end > len(sequence.blocks) * BLOCK_SIZE:
            blocks += blocks_for(end) - len(sequence.blocks)
        goes_on.append((sequence, start, end, end == total))
    if blocks > pool.available or tokens > max_step_tokens:
        return None
    plan = Plan()
    chunks, publishing = plan.chunks, list[Sequence]()
    for sequence, start, end, sample in goes_on:
        taken: tuple[int, ...] = ()
        if end > len(sequence.blocks) * BLOCK_SIZE:
            taken = tuple(pool.take(blocks_for(end) - len(sequence.blocks)))
            sequence.blocks.extend(taken)
        chunks.append(Chunk(sequence=sequence.id, start=start, count=end - start, blocks=taken, sample=sample))
        sequence.computed = end
        if sample:
            live = sequence.live
            sequence.unread += 1
            live.unread += 1
            live.spent += 1
        if end - start > 1:
            plan.prefill_tokens += end - start
        if end // BLOCK_SIZE > sequence.published:
            publishing.append(sequence)
    for sequence in publishing:
        publish_blocks(sequence, pool)
    return plan
