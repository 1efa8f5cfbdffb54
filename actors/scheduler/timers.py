"""Which requests must end by themselves: at their deadline, or because their reader owed credit for too long. Pure."""

from heapq import heapify, heappop, heappush
from math import inf

from ...protocol.events import FinishReason

_SLACK = 64  # entries of ended requests that are kept before the heap is built anew


class Timers:
    """Deadlines and stalls of live requests, by id."""

    def __init__(self, stall_timeout: float) -> None:
        self._stall_timeout = stall_timeout
        self._deadlines: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # may hold entries of ended requests
        self._starved: dict[str, float] = {}  # since when; in order of time

    def set_deadline(self, id: str, deadline: float) -> None:
        self._deadlines[id] = deadline
        heappush(self._heap, (deadline, id))

    def starve(self, id: str, now: float) -> None:
        """Everything on credit was sent; from now on the reader is waited for."""
        self._starved.setdefault(id, now)

    def feed(self, id: str) -> None:
        """It has credit again."""
        self._starved.pop(id, None)

    def forget(self, id: str) -> None:
        """The request ended."""
        self._starved.pop(id, None)
        if self._deadlines.pop(id, None) is not None and len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._heap = [(deadline, id) for id, deadline in self._deadlines.items()]
            heapify(self._heap)

    def next(self) -> float:
        """When something may be due; infinity when nothing can be."""
        deadline = self._heap[0][0] if self._heap else inf
        return min(deadline, next(iter(self._starved.values()), inf) + self._stall_timeout)

    def due(self, now: float) -> list[tuple[str, FinishReason]]:
        """The requests whose time has come, each once. The caller ends and forgets them."""
        ends: dict[str, FinishReason] = {}
        while self._heap and self._heap[0][0] <= now:
            _, id = heappop(self._heap)
            if id in self._deadlines:
                ends[id] = "deadline"
        for id, since in self._starved.items():
            if since + self._stall_timeout > now:
                break
            ends.setdefault(id, "stalled")
        return list(ends.items())
