"""When the lines of batches run, and how they give way. Pure.

They are strictly preemptible: a step computes either interactive sequences or background ones, never both, since every
row lengthens a step. Background sequences get a step only while no interactive one could use it. Meanwhile they keep
their KV blocks, until an interactive one needs these. Beside a batch of 1,000 lines, a stream's time between tokens was
1.02 of what it is alone in the median and 1.03 in the 99th percentile (loadtest/batch_beside.py).

What is left is the step in flight when an interactive request arrives, so background steps are short: the budget for
their prompts follows the time that they take.
"""

from itertools import chain
from typing import Final

from msgspec import structs

from .blocks import BlockPool, blocks_for
from .queues import Queues
from .step_plan import StepLimits, StepPlan

LONGEST_STEP: Final = 0.05  # seconds: what a background step may add to an interactive request's first token
LEAST_TOKENS: Final = 64  # of prompts in a background step, however slow the model is


def wants_step(interactive: Queues) -> bool:
    """Whether a step may be of use to interactive sequences, now or as soon as the last one is read.

    A sequence whose reader is behind wants none, unless its last token is still to be read; nor does one that waits for
    its grammar or its adapter.
    """
    begun = chain(interactive.running, interactive.parked)
    return any(sequence.live.credit > 0 or not sequence.remaining for sequence in begun) or any(
        not sequence.live.obstacle for sequence in interactive.waiting
    )


def give_way(interactive: Queues, background: Queues, pool: BlockPool, limits: StepLimits) -> StepPlan | None:
    """Take KV blocks from background sequences, the last first, as far as interactive ones may need them.

    The plan holds no chunks: only who was preempted, and what the worker must forget. None if there are enough.
    """
    wanted = 0
    able = [sequence for sequence in interactive.waiting if not sequence.live.obstacle]
    for sequence in chain(interactive.running, interactive.parked, able):
        wanted += blocks_for(sequence.total + 1) - len(sequence.blocks) + 1  # one more, as the planner keeps it free
    if pool.available >= wanted or not (background.running or background.parked):
        return None
    plan = StepPlan(background, pool, limits)
    for sequence in sorted([*background.running, *background.parked], key=lambda one: one.order, reverse=True):
        plan.preempt(sequence)
        if pool.available >= wanted:
            break
    return plan


class Pace:
    """How many tokens a background step may compute, from how long the last ones took."""

    def __init__(self) -> None:
        self._tokens = LEAST_TOKENS

    def note(self, seconds: float) -> None:
        """A background step took so long."""
        if seconds > LONGEST_STEP:
            self._tokens = max(self._tokens // 2, LEAST_TOKENS)
        elif seconds < LONGEST_STEP / 2:
            self._tokens *= 2

    def limits(self, limits: StepLimits) -> StepLimits:
        """The worker's limits with this budget; there is always one token for each row."""
        self._tokens = min(self._tokens, limits.max_step_tokens)
        return structs.replace(limits, max_step_tokens=max(self._tokens, limits.rows))
