"""One task for all connections; one task each would cost 10 µs per request or 2 KiB per socket.

- `Deadlines`: calls made after a fixed time unless forgotten first, as nearly all are.
- `Pings`: of all open WebSockets, in a wheel with one slot per second, so that wake-ups are spread.
- `Hangups`: finds clients that leave while nobody reads from them (a pipelined request, a full queue).

With nothing set, no socket open and no reader blocked, none of them has a timer running.
"""

import math
import select
from collections.abc import Callable
from itertools import cycle, islice
from typing import Final, NamedTuple, Protocol

import trio

SEARCHED: Final = 1000  # deadlines that are looked at for the first of a group: 50 µs
SLOT_SECONDS: Final = 1.0  # between two slots of pings
POLL_SECONDS: Final = 0.05  # between two looks at blocked connections
PEER_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)

Ping = Callable[[], None]


class Deadlines:
    """Calls back `seconds` after `set`, in the order of the calls. One key has one deadline."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._set: dict[object, tuple[float, Callable[[], None], str | None]] = {}  # by time: all have the same delay
        self._sleep = trio.CancelScope()

    def set(self, key: object, call: Callable[[], None], group: str | None = None) -> None:
        """Set a deadline, or restart it if it is set already."""
        if self._set:
            self._set.pop(key, None)
        self._set[key] = trio.current_time() + self._seconds, call, group
        if len(self._set) == 1:
            self._aim()

    def forget(self, key: object) -> None:
        """Remove a deadline; harmless if it is not set."""
        if self._set.pop(key, None) is not None and not self._set:
            self._aim()

    def call_first(self, group: str | None) -> bool:
        """Make the call that is due first, now: of a group, or of all. Returns whether one was found."""
        for key, (_, call, its_group) in islice(self._set.items(), SEARCHED):
            if group in (None, its_group):
                del self._set[key]
                call()
                return True
        return False

    async def run(self) -> None:
        """Run until cancelled. No `call` may raise."""
        while True:
            with trio.CancelScope() as self._sleep:
                self._aim()
                await trio.sleep_forever()
            now = trio.current_time()
            while self._set:
                key, (due, call, _) = next(iter(self._set.items()))
                if due > now:
                    break
                del self._set[key]
                call()

    def _aim(self) -> None:
        """Wake up for the first deadline. If it was forgotten by then, the next one is looked up."""
        self._sleep.deadline = next((due for due, _, _ in self._set.values()), math.inf)


class Pings:
    """Calls each open socket's `ping` once every `interval` seconds. A `ping` must not raise or wait."""

    def __init__(self, interval: float) -> None:
        self._slots: list[set[Ping]] = [set() for _ in range(max(1, math.ceil(interval / SLOT_SECONDS)))]
        self._seconds = interval / len(self._slots)
        self._slot_of: dict[Ping, set[Ping]] = {}
        self._next = cycle(self._slots)  # fills all slots evenly
        self._idle = trio.lowlevel.ParkingLot()

    def join(self, ping: Ping) -> None:
        """Add a ping; its first call comes within an interval."""
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


class Blockable(Protocol):
    """A connection: its socket's descriptor, negative once closed, and how to end it."""

    def fileno(self) -> int: ...

    def abort(self) -> None: ...


class Hangups:
    """The connections with blocked readers."""

    def __init__(self) -> None:
        self._blocked: set[Blockable] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def block(self, connection: Blockable) -> None:
        self._blocked.add(connection)
        self._idle.unpark()

    def unblock(self, connection: Blockable) -> None:
        self._blocked.discard(connection)

    async def watch(self) -> None:
        """Abort those whose clients have left, until cancelled."""
        while True:
            while not self._blocked:
                await self._idle.park()
            await trio.sleep(POLL_SECONDS)
            open_ones = {connection.fileno(): connection for connection in self._blocked}
            open_ones.pop(-1, None)
            poll = select.poll()
            for descriptor in open_ones:
                poll.register(descriptor, PEER_HUNG_UP)
            for descriptor, _ in poll.poll(0) if open_ones else ():
                open_ones[descriptor].abort()


class ConnectionTimers(NamedTuple):
    """Those of a server's connections."""

    heads: Deadlines  # for the head of a request
    idle: Deadlines  # between requests
    hangups: Hangups
    pings: Pings

    def displace(self, origin: str | None) -> bool:
        """End a connection without a request, from there or from anywhere (None); returns whether one was found.

        Of those that wait for a head, or else of the others, the longest without a request.
        """
        return self.heads.call_first(origin) or self.idle.call_first(origin)

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            for timer in (self.heads.run, self.idle.run, self.hangups.watch, self.pings.run):
                nursery.start_soon(timer)
