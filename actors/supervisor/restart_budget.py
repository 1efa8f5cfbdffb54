"""How often a worker may be replaced. Pure: callers pass the time.

A worker that dies now and then costs its streams a pause, and is always replaced. If workers die soon after they
were ready, all streams would stall for ever: after a few such restarts in a short time the supervisor gives up.
"""

from collections import deque
from typing import Final

RESTARTS: Final = 3
ENOUGH_STEPS: Final = 100  # of a worker, after which its loss does not count: streams get on
PERIOD: Final = 60.0  # seconds
_BACKOFF: Final = (0.0, 0.5, 2.0)  # seconds before the first, second and third restart of a period


class RestartBudget:
    """How long to wait before the next restart, or that none is left. Pure."""

    def __init__(self) -> None:
        self._restarts: deque[float] = deque()
        self._excused = 0

    def excuse(self, losses: int) -> None:
        """So many workers in all have died of requests that were found: those restarts do not count."""
        while self._excused < losses:
            self._excused += 1
            if self._restarts:
                self._restarts.pop()

    def next_delay(self, now: float, steps: int = 0) -> float | None:
        """Seconds before one more restart, which this counts; None if there is none left.

        `steps`: what the lost worker has computed.
        """
        if steps >= ENOUGH_STEPS:
            return _BACKOFF[0]
        while self._restarts and now - self._restarts[0] > PERIOD:
            self._restarts.popleft()
        if len(self._restarts) >= RESTARTS:
            return None
        self._restarts.append(now)
        return _BACKOFF[len(self._restarts) - 1]
