"""Requests that time out: at their deadline, or because their reader granted no credit for too long. Pure."""

from bisect import bisect_left, insort
from itertools import takewhile
from math import inf

from ...protocol.events import FinishReason


class Timers:
    """Deadlines and stalls of live requests, by id."""

    def __init__(self, stall_timeout: float) -> None:
        self._stall_timeout = stall_timeout
        self._deadlines: dict[str, float] = {}
        self._in_order: list[tuple[float, str]] = []  # the same
        self._starved: dict[str, float] = {}  # since when; oldest first

    def set_deadline(self, id: str, deadline: float) -> None:
        self._deadlines[id] = deadline
        insort(self._in_order, (deadline, id))

    def starve(self, id: str, now: float) -> None:
        """Its credit is used up: from now on it waits for its reader."""
        self._starved.setdefault(id, now)

    def stop_starving(self, id: str) -> None:
        """It has credit again."""
        self._starved.pop(id, None)

    def forget(self, id: str) -> None:
        """The request ended."""
        self._starved.pop(id, None)
        if (deadline := self._deadlines.pop(id, None)) is not None:
            del self._in_order[bisect_left(self._in_order, (deadline, id))]

    def next_due(self) -> float:
        """When something may be due; infinity if nothing can be."""
        deadline = self._in_order[0][0] if self._in_order else inf
        return min(deadline, next(iter(self._starved.values()), inf) + self._stall_timeout)

    def due(self, now: float) -> dict[str, FinishReason]:
        """The requests whose time has come. The caller ends and forgets them."""
        ends: dict[str, FinishReason] = {}
        for _, id in takewhile(lambda item: item[0] <= now, self._in_order):
            ends[id] = "deadline"
        for id, _ in takewhile(lambda item: item[1] + self._stall_timeout <= now, self._starved.items()):
            ends.setdefault(id, "stalled")
        return ends
