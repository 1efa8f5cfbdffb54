"""Who is to blame for a lost worker. Pure.

A request that was computed alone when the worker crashed or hung, twice, is the culprit. Otherwise nobody knows, and
what was in `max_losses` lost workers in a row fails: that is better than losing the engine. A worker that was killed
from outside makes nobody suspect at first; but where memory runs out the kernel kills with the same signal, so it does
the second time. A crash that takes several requests in one step convicts none of them.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from ...protocol.steps import Step
from .live_table import LiveTable
from .sequence import LiveRequest

CONVICTED_AT: Final = 2  # losses of a request that was computed alone when the worker crashed


class Conviction(Struct, frozen=True, kw_only=True):
    """A request that killed workers, for whoever mends the cause. Its client may have left."""

    live: LiveRequest
    losses: int
    reason: str  # how the last worker ended
    generated: tuple[int, ...]  # tokens of its answer that were known, by unfinished choice
    steps: tuple[Step, ...]  # that were in flight


def blame(table: LiveTable, steps: Iterable[Step], reason: str, *, crashed: bool, max_losses: int) -> list[Conviction]:
    """Count the loss against what was computed, or being prepared; returns who must fail, and is refused from now on.

    The others that were computed are suspects, if the worker crashed or if it was not their first loss.
    """
    steps, quarantine = tuple(steps), table.quarantine
    numbers = {chunk.sequence for step in steps for chunk in step.chunks}
    flying = [table.sequences[number] for number in sorted(numbers & table.sequences.keys())]
    left = {number: live for _, number, live in table.departed if number in numbers}
    lives = {live.id: live for live in (*(one.live for one in flying), *left.values())}
    everybody_known = len(flying) + len(left) == len(numbers)
    alone = crashed and len(lives) == 1 and everybody_known
    preparing = [] if alone else [one for one in table.sequences.values() if one.live.awaits_preparation]
    most = CONVICTED_AT if alone else max_losses
    losses = quarantine.count_loss(lives.values(), table.now)
    for sequence in flying:
        sequence.losses = losses[sequence.live.id] = max(sequence.losses + 1, losses[sequence.live.id])
        if crashed or sequence.losses > 1:
            quarantine.suspect(sequence)
    for sequence in preparing:
        sequence.losses += 1
        lives[sequence.live.id] = sequence.live
        losses[sequence.live.id] = max(sequence.losses, losses.get(sequence.live.id, 0))
    convictions = list[Conviction]()
    for id, live in lives.items():
        if losses[id] >= most:
            quarantine.convict(live, table.now)
            generated = tuple(len(sequence.generated) for sequence in live.choices.values())
            convictions.append(
                Conviction(live=live, losses=losses[id], reason=reason, generated=generated, steps=steps)
            )
    return convictions


class Excuses:
    """Which lost workers do not count towards the restarts, as their cause was found.

    If `most` convictions follow each other and nobody else got a token in between, it is not the requests: the model
    or the machine is broken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._fruitless = 0
        self._tokens = 0  # generated until the last conviction

    def losses(self, convictions: list[Conviction], generated_tokens: int) -> int:
        """How many losses these convictions excuse; `generated_tokens` were generated in all so far."""
        own = max(sum(conviction.generated) for conviction in convictions)
        self._fruitless = 0 if generated_tokens - self._tokens > own else self._fruitless + 1
        self._tokens = generated_tokens
        return max(conviction.losses for conviction in convictions) if self._fruitless <= self._most else 0
