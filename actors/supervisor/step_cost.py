"""How long a step may take, learned from the steps before it. Pure."""

from typing import Final

from ...protocol.steps import Step

# A token behind so many others counts twice: attention to them then costs what all the rest does. Models need more
# context for that, so a long prompt's time is overestimated, never underestimated.
CONTEXT: Final = 1024
_FADING: Final = 0.98  # of the slowest step of its size, with each that is faster: one slow moment is forgotten


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
