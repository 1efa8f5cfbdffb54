"""The pings of all open WebSockets, from one task: a wheel of slots, one a second, one round an interval.

A task and a timer for each of thousands of idle sockets would waste memory and wake-ups. All sockets of a slot are
pinged in one wake-up, and the slots spread the load; while no socket is open, nothing runs.
"""

import math
from collections.abc import Callable
from itertools import cycle

import trio

SLOT_SECONDS = 1.0

Ping = Callable[[], None]


class Pings:
    """The open sockets' `ping`s, each called once in `interval` seconds; none of them may raise or wait."""

    def __init__(self, interval: float) -> None:
        self._slots: list[set[Ping]] = [set() for _ in range(max(1, math.ceil(interval / SLOT_SECONDS)))]
        self._seconds = interval / len(self._slots)
        self._slot_of: dict[Ping, set[Ping]] = {}
        self._next = cycle(self._slots)  # every slot gets as many
        self._idle = trio.lowlevel.ParkingLot()

    def join(self, ping: Ping) -> None:
        """The first call is within an interval."""
        slot = self._slot_of[ping] = next(self._next)
        slot.add(ping)
        self._idle.unpark()

    def leave(self, ping: Ping) -> None:
        """Remove a ping; harmless if it never joined."""
        self._slot_of.pop(ping, set()).discard(ping)

    async def run(self) -> None:
        """Ping until cancelled."""
        for slot in cycle(self._slots):
            for ping in tuple(slot):
                ping()
            while not self._slot_of:
                await self._idle.park()
            await trio.sleep(self._seconds)
