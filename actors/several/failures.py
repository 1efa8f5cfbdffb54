"""When a model that failed is tried again: a pause that grows with each failure. Pure: callers pass the time.

A worker that was killed while it loaded its model may be luckier the next time. A checkpoint that is broken stays so,
and each attempt costs the reading of it, and the place of another model.
"""

from collections import defaultdict
from typing import Final

PAUSES: Final = (5.0, 15.0, 60.0, 300.0)  # seconds after the first failure, the second, …, and all later ones
PERIOD: Final = 2 * PAUSES[-1]  # seconds after which a failure is forgotten
HOPELESS: Final = 3  # failures, after which work that can wait no longer waits


class Failures:
    """Of each model, those of the last PERIOD."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, model: str, now: float) -> None:
        recent = [time for time in self._times[model] if now - time < PERIOD]
        self._times[model] = [*recent[-len(PAUSES) :], now]

    def seconds_left(self, model: str, now: float) -> float:
        """Until it may be tried again; 0 if it may be now."""
        times = self._times[model]
        return max(0.0, times[-1] + PAUSES[min(len(times), len(PAUSES)) - 1] - now) if times else 0.0

    def is_hopeless(self, model: str) -> bool:
        return len(self._times[model]) >= HOPELESS
