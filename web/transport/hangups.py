"""Finds clients that leave while nothing reads from them: behind a pipelined request or a full queue.

A connection's reader sees its client's end, except while it waits to pass on what it has read. Only such connections
are checked, by one system call for all of them; while there are none, nothing runs.
"""

import select
from typing import Protocol

import trio

POLL_SECONDS = 0.05
PEER_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


class Blockable(Protocol):
    """A connection: the number of its socket, negative once it is closed, and how to end it."""

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
