"""A WebSocket's outgoing messages: straight to the connection while the client keeps up, otherwise sent by a task.

The order of `post` is the order on the wire: once a message waits, all later ones wait behind it. The sending task
lives only while messages wait, so a socket that keeps up has none.
"""

import trio

from ..exchange import Wire


class Outgoing:
    """One socket's messages."""

    __slots__ = ("_sent", "_waiting", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: list[bytes] = []
        self._sent: trio.Event | None = None  # of what waits now; None: the task does not run

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def post(self, frame: bytes) -> trio.Event | None:
        """Write or queue a message without waiting. None if it was written, else an event set when it was sent."""
        if self._sent is None:
            written = self._wire.write_now(frame)
            if written == "all":
                return None
            if written == "nothing":
                self._waiting.append(frame)
            self._sent = trio.Event()
            self._wire.nursery.start_soon(self._send_waiting)
        else:
            self._waiting.append(frame)
        return self._sent

    async def flush(self) -> None:
        """Wait until no message waits."""
        while self._sent is not None:
            await self._sent.wait()

    async def _send_waiting(self) -> None:
        leaving: trio.Event | None = None
        try:
            await self._wire.finish()
            while self._waiting:
                frames, self._waiting = self._waiting, []
                leaving, self._sent = self._sent, trio.Event()
                for frame in frames:
                    await self._wire.send(frame)
                assert leaving is not None
                leaving.set()
        finally:  # also when the socket ends: an answer that outlives it must not wait for it
            for sent in (leaving, self._sent):
                if sent is not None:
                    sent.set()
            self._sent = None
