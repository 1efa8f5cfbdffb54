"""How far the worker gets with a step in flight, once the rows before it are read. Pure.

A row may bring several tokens. The step behind it, planned before, computes those too (`Chunk`), as far as blocks and
the step's tokens reach. The front knows both, so it can tell which sequences reach their end there, and plan their next
tokens at once instead of leaving them out of a step.
"""

from collections.abc import Mapping

from msgspec import structs

from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import MAX_FORCED, Step
from .sequence import Sequence


def foresee(step: Step, sequences: Mapping[int, Sequence], max_step_tokens: int) -> Step:
    """The step with the counts that its rows will have, and their sequences with it; all rows before it are read.

    A chunk that cannot reach the end of its sequence stays as it was planned: its row will say how far it got.
    """
    spare = max_step_tokens - sum([chunk.count for chunk in step.chunks])
    chunks = list(step.chunks)
    for place, chunk in enumerate(step.chunks):
        sequence = sequences.get(chunk.sequence)
        if sequence is None:
            spare -= MAX_FORCED  # it has ended here; there it may have as many tokens more
            continue
        more = sequence.read - chunk.start - chunk.count
        if more <= 0 or not chunk.sample:
            continue
        spare -= more
        if spare >= 0 and sequence.known and sequence.read <= len(sequence.blocks) * BLOCK_SIZE:
            chunks[place] = structs.replace(chunk, count=chunk.count + more)
            sequence.computed += more
    return structs.replace(step, chunks=tuple(chunks))
