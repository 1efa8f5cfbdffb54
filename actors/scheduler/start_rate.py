"""How soon a waiting request starts, from how fast those before it did. Pure.

Only a queue tells this: while nobody waits, starts come at the clients' pace and say nothing about ours. So the
measurement begins anew whenever the queue has been empty, and until it has seen a little the answer is "unknown".
"""

from collections import deque
from typing import Final

_PLANS: Final = 16  # the latest that started somebody: few, so that a change of load shows soon
_ENOUGH: Final = 5  # four intervals: fewer may be one long answer, and the estimate three times too long


class StartRate:
    """Starts per second of a queue that was never empty meanwhile."""

    def __init__(self) -> None:
        self._starts: deque[tuple[float, int]] = deque(maxlen=_PLANS)

    def note(self, started: int, left: int, now: float) -> None:
        """A plan gave `started` sequences their first step, and `left` still wait."""
        if left:
            self._starts.append((now, started))
        else:
            self._starts.clear()

    def seconds_until(self, position: int, now: float) -> float | None:
        """Until the one at `position` (1 is next) starts. The time since the last start counts, so a jam shows."""
        if len(self._starts) < _ENOUGH:
            return None
        first = self._starts[0][0]
        started = sum(count for _, count in self._starts) - self._starts[0][1]
        return position * (now - first) / started if now > first else None
