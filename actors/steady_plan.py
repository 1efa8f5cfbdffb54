"""The plan of a step that has room for all tokens of every running sequence: nearly every one while answers stream.

What `plan_step` would plan, without its questions: nobody waits or is parked, so nobody joins, resumes or makes way;
everybody has credit, and the step room and blocks for all, so nobody gives up a row. A test holds the two equal.
"""

from msgspec.structs import replace

from ..protocol.settings import BLOCK_SIZE
from ..protocol.steps import Chunk
from .blocks import BlockPool, blocks_for
from .queues import Queues
from .sequence import LiveRequest, Sequence
from .sequence_kv import publish_blocks
from .step_plan import Plan


def plan_steady(queues: Queues, pool: BlockPool, max_step_tokens: int) -> Plan | None:
    """The plan, or None where it takes `plan_step`; then nothing has changed."""
    if queues.waiting or queues.parked:
        return None
    chunks: list[Chunk] = []
    goes_on: list[tuple[Sequence, LiveRequest, int, bool]] = []  # the token after its last, and whether it samples
    growing: list[int] = []  # places of those that need blocks
    longer = blocks = 0
    for sequence in queues.running:
        total, start = sequence.prompt_tokens + len(sequence.generated) + sequence.unread, sequence.computed
        end = total if total < sequence.max_total else sequence.max_total - 1
        if start >= end:
            continue  # waits for its last token to be read
        live, count = sequence.live, end - start
        # The choices of a request share its credit.
        if not sequence.known or live.granted - live.spent < len(live.choices):
            return None
        if count > 1 or end < total:
            if not sequence.reads_prefix_cache:
                return None  # its prompt may have to be scored
            longer += count - 1
        if (count > 1 or not start % BLOCK_SIZE) and end > len(sequence.blocks) * BLOCK_SIZE:
            growing.append(len(chunks))
            blocks += blocks_for(end) - len(sequence.blocks)
        chunks.append(Chunk(sequence=sequence.id, start=start, count=count, blocks=(), sample=end == total))
        goes_on.append((sequence, live, end, end == total))
    if blocks > pool.available or len(chunks) + longer > max_step_tokens:
        return None
    for place in growing:
        sequence, _, end, _ = goes_on[place]
        taken = tuple(pool.take(blocks_for(end) - len(sequence.blocks)))
        sequence.blocks.extend(taken)
        chunks[place] = replace(chunks[place], blocks=taken)
    publishing: list[Sequence] = []
    for sequence, live, end, sample in goes_on:
        sequence.computed = end
        if sample:
            sequence.unread += 1
            live.unread += 1
            live.spent += 1
        if end // BLOCK_SIZE > sequence.published:
            publishing.append(sequence)
    for sequence in publishing:
        publish_blocks(sequence, pool)
    plan = Plan()
    plan.chunks = chunks
    plan.prefill_tokens = sum(chunk.count for chunk in chunks if chunk.count > 1) if longer else 0
    return plan
