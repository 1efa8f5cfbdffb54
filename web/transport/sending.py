"""The outgoing bytes of one connection: sent in order and completely, or the connection ends, even on cancellation.

- Bytes given to `send` reach the kernel completely or the connection ends. A cancelled handler never leaves half an
  HTTP/2 frame. A send may wait `timeout` for a client that does not read; closing the socket ends it at once. Before
  that the answer is told, and has LAST_WORDS_SECONDS for its end, if the client reads again.
- `write_now` is for code outside a task: it writes what the kernel accepts, possibly nothing. The rest of a partly
  written frame is sent before anything else.
- Over TLS everything passes through the session here. Encrypted bytes are sent in order, or the connection ends.
"""

import logging
import os
from collections.abc import Callable

import trio

from ..exchange import Written
from .tls import TlsSession

log = logging.getLogger("triolet.http")

LAST_WORDS_SECONDS = 1.0  # enough for a write and the closing of a WebSocket


class Sending:
    """`lost` is called when the client turns out to be gone, `abort` when it has not read for `timeout` seconds.

    `stalled` is called before `abort`.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        timeout: float,
        lost: Callable[[], None],
        abort: Callable[[], None],
        stalled: Callable[[], None] = lambda: None,
    ) -> None:
        self.tls: TlsSession | None = None  # once TLS is in use
        self.ended = False  # the connection ends, or its end was announced: nothing new is sent
        self._stream = stream
        self._timeout = timeout
        self._lost = lost
        self._abort = abort
        self._stalled = stalled
        self._lock: trio.Lock | None = None  # created when a task first has to wait; most connections never need it
        self._file = stream.socket.fileno()
        self._waiting = 0  # tasks that wait for the kernel, or for another such task
        self._rest = b""  # of a partial write_now

    def _turn(self) -> trio.Lock:
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def waits(self) -> bool:
        """Whether a send waits for the client, whose timeout is running: what is sent behind it would only wait too."""
        return self._waiting > 0

    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed, since the number may then belong to another."""
        return self._file

    def forget_file(self) -> None:
        """Called while the socket is being closed."""
        self._file = -1

    def let_go(self) -> None:
        """The connection is over, and must not live on by what it passed to its parts."""
        self.ended = True
        self._lost = self._abort = self._stalled = _nothing

    def write_now(self, framed: bytes) -> Written:
        """Write complete frames of the current answer, outside any task, if the client keeps up.

        `part`: the kernel took the beginning. The next send starts with the rest and must follow soon. `nothing`: the
        caller must use `send`. Only for HTTP/1.1 and its WebSockets.
        """
        if self._rest or self.ended or self._waiting:
            return "nothing"
        if self.tls is not None:
            framed = self.tls.encrypt(framed)  # from here on it must go out, in this order
        try:
            sent = os.write(self._file, framed)
        except OSError:  # as below
            if self.tls is None:
                return "nothing"
            sent = 0
        if sent == len(framed):
            return "all"
        self._rest = framed[sent:]
        return "part"

    async def finish(self) -> None:
        """Sends the rest of what `write_now` wrote in part."""
        if self._rest:
            await self.send_all(b"")
        await trio.lowlevel.checkpoint()

    async def send(self, data: bytes) -> None:
        """Send the protocol's bytes, encrypted if TLS is in use."""
        if self.tls is not None:
            if self.ended:  # the end was already announced
                return
            data = self.tls.encrypt(data)
        await self.send_all(data)
        await trio.lowlevel.checkpoint()

    async def send_all(self, data: bytes) -> None:
        """Send bytes exactly as they go on the wire."""
        if rest := self._send_nowait(data):
            # No other task can intervene: an uncontended lock is taken before the first yield.
            await self.send_waiting(rest)

    def _send_nowait(self, data: bytes) -> bytes:
        """Write what the kernel accepts at once and return the rest. Half the cost of `send_all` per token."""
        if self._waiting:
            return data
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            sent = os.write(self._file, data)
        except OSError:  # buffer full or connection lost: send_all finds out which
            return data
        return data[sent:] if sent < len(data) else b""

    async def send_waiting(self, data: bytes) -> None:
        """Send bytes as they go on the wire, after those already waiting."""
        self._waiting += 1
        try:
            with trio.CancelScope(shield=True):  # those that wait for their turn wait for one that has a deadline
                async with self._turn():
                    rest = await self._send_within(self._timeout, memoryview(data))
                    if rest:
                        self._stalled()
                        rest = await self._send_within(LAST_WORDS_SECONDS, rest)
                    if rest:
                        log.info("connection closed: the client has not read for %g s", self._timeout)
                        self._abort()
        except (OSError, trio.ClosedResourceError):
            self._lost()
        finally:
            self._waiting -= 1

    async def _send_within(self, seconds: float, data: memoryview) -> memoryview:
        """Returns what the kernel has not taken in this time."""
        with trio.move_on_after(seconds):
            while data:
                data = data[await self._stream.socket.send(data) :]
        return data

    async def say_end(self) -> None:
        """Tell the client that nothing more comes. Raises trio's errors if it is gone."""
        if self.tls is not None:
            await self.send_all(self.tls.close())
        async with self._turn():
            await self._stream.send_eof()


def _nothing() -> None:
    pass
