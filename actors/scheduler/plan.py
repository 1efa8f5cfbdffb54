"""What the next step computes. No phases: a sequence has `computed` and `total` tokens, a step spends one token budget.

Running sequences first, in order, then the waiting ones that may join. A decoding sequence needs one token and keeps it
whatever else there is: prompts share what is left, so a long prompt never holds up a running stream. Continuous
batching, chunked prefill, prefix reuse and preemption by recompute all follow. Pure: no clock, no I/O; the same
sequences and blocks give the same plan.
"""

from collections.abc import Iterable

from .blocks import BlockPool
from .fair_share import by_rank
from .joining import Joining
from .moves import Moves
from .queues import Queues
from .sequence import Sequence
from .sequence_kv import publish_blocks
from .step_plan import Limits, Plan


def plan_step(queues: Queues, pool: BlockPool, limits: Limits) -> Plan:
    """Plan one step: give chunks to sequences, move them between the queues, take and release blocks."""
    moves = Moves(queues, pool, limits)
    park(moves)
    resume_parked(moves)
    joining = Joining(moves)
    joining.make_way()
    remaining = [sequence.remaining for sequence in queues.running]
    moves.budget = prefill_budget = limits.max_step_tokens - remaining.count(1)
    # Where everybody gets what it needs, the policy's order would only give the worker's rows other places.
    scarce = sum(1 for count in remaining if count > 1) > 1 or pool.available < len(remaining)
    serve(moves, by_rank(queues, queues.running) if scarce else queues.running)
    joining.admit()
    for sequence in moves.plan.planned.values():
        publish_blocks(sequence, pool)  # later steps may read these blocks: steps run in order
    moves.plan.prefill_tokens = prefill_budget - moves.budget
    return moves.plan


def park(moves: Moves) -> None:
    """Running sequences whose reader is behind give up their row, before anybody else looks for one."""
    for sequence in tuple(moves.queues.running):
        if sequence.live.credit <= 0 and sequence.remaining > 0:
            moves.queues.move(sequence, "parked")


def resume_parked(moves: Moves) -> None:
    """Parked sequences whose reader caught up get a row again; they hold blocks, so they go before waiting ones."""
    for sequence in tuple(moves.queues.parked):
        if sequence.live.credit > 0 and len(moves.queues.running) < moves.rows:
            moves.queues.move(sequence, "running")


def serve(moves: Moves, running: Iterable[Sequence]) -> None:
    """A chunk for every running sequence, as far as budget and blocks reach."""
    for sequence in tuple(running):
        remaining = sequence.remaining
        if remaining <= 0 or sequence.place != "running":
            continue  # waits for its last token to be read, or was preempted by an earlier turn of this loop
        if sequence.live.credit <= 0:
            moves.queues.move(sequence, "parked")  # another choice of its request has taken the last of it
            continue
        if remaining > 1 and moves.budget == 0:
            moves.plan.blocked[sequence.id] = "budget"
            continue
        count = moves.reserve(sequence, 1 if remaining == 1 else min(remaining, moves.budget))
        if count <= 0:
            moves.plan.blocked[sequence.id] = "blocks"
            continue
        if remaining > 1:
            moves.budget -= count
        moves.add_chunk(sequence, count)
