"""How long a step may take, and how long it usually takes, learned from the steps before it. Pure."""

from itertools import pairwise
from math import inf
from typing import Final

from ...protocol.steps import Step

# A token behind so many others counts twice: attention to them then costs what all the rest does. Models need more
# context for that, so a long prompt's time is overestimated, never underestimated.
CONTEXT: Final = 1024
_FADING: Final = 0.98  # of the slowest step of its size, with each that is faster: one slow moment is forgotten


_SHARE: Final = 0.1  # of the last step in the mean of its size
_FASTER_SHARE: Final = 0.5  # the same of one that was faster: the mean should rather say too little
_OUTLIER: Final = 4.0  # times the mean: what a slow moment counts at most


def work_of(step: Step) -> int:
    """A measure of what it computes: 1 for a token at the beginning of a text."""
    work = 0
    for chunk in step.chunks:
        work += chunk.count * (CONTEXT + chunk.start + chunk.count)
    return work // CONTEXT


class StepCost:
    """The slowest steps of late, by powers of two of their work."""

    def __init__(self) -> None:
        self._slowest: dict[int, float] = {}  # seconds, by the number of binary digits of the work

    def note(self, work: int, seconds: float) -> None:
        """A step is done."""
        size = work.bit_length()
        self._slowest[size] = max(seconds, _FADING * self._slowest.get(size, 0.0))

    def predict(self, work: int) -> float | None:
        """Seconds that a step takes at most, as far as earlier ones tell; None before the first.

        Less work takes no longer, and twice the work at most twice as long: the weights are read once in any case.
        """
        bounds = (seconds * max(1.0, work / (1 << max(size - 1, 0))) for size, seconds in self._slowest.items())
        return min(bounds, default=None)


class TypicalCost:
    """What steps usually take, by powers of two of their work: the mean of late. Between two known sizes it is a line.

    It never says too much of sizes that it has not seen: beyond the largest it stays level, below the smallest the line
    goes to 0. So before the first step everything takes no time.
    """

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # mean work and seconds, by the work's binary digits
        self._curve: list[tuple[float, float]] = [(0.0, 0.0)]  # the same in order; less work takes no more

    def note(self, work: int, seconds: float) -> None:
        size = work.bit_length()
        old_work, old_seconds = self._points.get(size, (work, seconds))
        self._points[size] = (
            old_work + _SHARE * (work - old_work),
            old_seconds
            + (_SHARE if seconds > old_seconds else _FASTER_SHARE)
            * (min(seconds, _OUTLIER * old_seconds) - old_seconds),
        )
        least, curve = inf, list[tuple[float, float]]()
        for _, (at, took) in sorted(self._points.items(), reverse=True):
            least = min(least, took)  # one slow step of a rare size tells nothing about larger ones
            curve.append((at, least))
        self._curve = [(0.0, 0.0), *reversed(curve)]

    @property
    def known(self) -> bool:
        """Whether a step was done."""
        return bool(self._points)

    def seconds(self, work: float) -> float:
        """Of a step with so much work."""
        for (before, low), (at, high) in pairwise(self._curve):
            if work <= at:
                return low + (high - low) * (work - before) / (at - before)
        return self._curve[-1][1]

    def work_within(self, seconds: float) -> float:
        """The most work that a step does in this time; infinity if no step is known to take longer."""
        for (before, low), (at, high) in pairwise(self._curve):
            if high > seconds:
                return before + (at - before) * (seconds - low) / (high - low)
        return inf
