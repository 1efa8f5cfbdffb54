"""The plan of a step in which every running sequence goes on by its one token: nearly every step while answers stream.

What `plan_step` would plan, without its questions: nobody waits or is parked, so nobody joins, resumes or makes way;
everybody has credit and a block, so nobody gives up a row. A test holds the two equal.
"""

from ..protocol.settings import BLOCK_SIZE
from ..protocol.steps import Chunk
from .blocks import BlockPool
from .queues import Queues
from .sequence import Sequence
from .sequence_kv import publish_blocks
from .step_plan import Plan


def plan_steady(queues: Queues, pool: BlockPool) -> Plan | None:
    """The plan, or None where it takes `plan_step`; then nothing has changed."""
    if queues.waiting or queues.parked:
        return None
    goes_on: list[Sequence] = []
    blocks = 0
    for sequence in queues.running:
        total = sequence.prompt_tokens + len(sequence.generated) + sequence.unread
        computed = sequence.computed
        if computed >= total or computed >= sequence.max_total - 1:
            continue  # waits for its last token to be read
        live = sequence.live
        # The choices of a request share its credit.
        if computed + 1 != total or not sequence.known or live.granted - live.spent < len(live.choices):
            return None
        if computed == len(sequence.blocks) * BLOCK_SIZE:
            blocks += 1
        goes_on.append(sequence)
    if blocks > pool.available:
        return None
    plan = Plan()
    for sequence in goes_on:
        start = sequence.computed
        taken: tuple[int, ...] = ()
        if start == len(sequence.blocks) * BLOCK_SIZE:
            taken = tuple(pool.take(1))
            sequence.blocks.extend(taken)
        plan.chunks.append(Chunk(sequence=sequence.id, start=start, count=1, blocks=taken, sample=True))
        sequence.computed = start + 1
        sequence.unread += 1
        sequence.live.unread += 1
        sequence.live.spent += 1
    for sequence in goes_on:
        if sequence.computed // BLOCK_SIZE > sequence.published:
            publish_blocks(sequence, pool)
    return plan
