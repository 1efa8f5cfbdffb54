"""Calls to make after a fixed time unless they are forgotten before, as they nearly always are.

One task waits for all of them and wakes up at most once in that time. A cancel scope with a deadline for each would
cost 10 µs per request. While nothing is set, no timer runs.
"""

from collections.abc import Callable
from math import inf

import trio


class Deadlines:
    """Calls back `seconds` after `set`, in the order of the calls. One key has one deadline."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._set: dict[object, tuple[float, Callable[[], None]]] = {}  # by time, because all have the same to go
        self._sleep = trio.CancelScope()

    def set(self, key: object, call: Callable[[], None]) -> None:
        """Set a deadline, or restart it if it is set already."""
        if self._set:
            self._set.pop(key, None)
        self._set[key] = trio.current_time() + self._seconds, call
        if len(self._set) == 1:
            self._aim()

    def forget(self, key: object) -> None:
        """Remove a deadline; harmless if it is not set."""
        if self._set.pop(key, None) is not None and not self._set:
            self._aim()

    async def run(self) -> None:
        """Run until cancelled. No `call` may raise."""
        while True:
            with trio.CancelScope() as self._sleep:
                self._aim()
                await trio.sleep_forever()
            now = trio.current_time()
            while self._set:
                key, (due, call) = next(iter(self._set.items()))
                if due > now:
                    break
                del self._set[key]
                call()

    def _aim(self) -> None:
        """Wake up for the first deadline. If it was forgotten, the next one is looked up then."""
        self._sleep.deadline = next((due for due, _ in self._set.values()), inf)
