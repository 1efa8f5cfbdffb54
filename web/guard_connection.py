"""One TCP connection, from its first byte to its last: reads, feeds hypercorn's protocol classes, sends, closes.

Takes the place of hypercorn's TCPServer, whose defects end the process or leak the socket. What holds here:

- Nothing that goes wrong in a connection leaves `run`, except cancellation from outside.
- Bytes handed to the protocol's `send` reach the kernel whole or the connection ends: a cancelled handler never leaves
  half an HTTP/2 frame. A send may wait `send_timeout` for a client that does not read, and `abort` ends it at once.
- Closing and recycling finish although the handler was cancelled: quart-trio cancels it on the `http.disconnect` that
  hypercorn itself sends at the end of every response. The keep-alive time is the deadline of the connection's scope.
- TLS (web/tls_session.py) is a change of bytes between the socket and the protocol: it is spoken from the first byte,
  the handshake has HANDSHAKE_SECONDS, and what was encrypted is sent in that order or the connection ends.
- A client that closes its side (half-close too) is gone: its handlers are cancelled. While the reader is not reading,
  web/hangups.py looks for the hang-up by other means.
"""

import logging
import math
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr  # pyright: ignore  untyped in hypercorn

from .direct import KEEP_PINGING, WRITE_CHUNK, WRITER, DirectWriter, Written
from .guard_http1 import GuardedHTTP1
from .guard_http2 import GuardedHTTP2
from .guard_refusal import ConnectionRefused
from .hangups import Hangups
from .pings import Ping, Pings
from .tls_context import Certificates
from .tls_session import TlsSession

log = logging.getLogger("triolet.http")

RECEIVE_BYTES = 2**16
HANDSHAKE_SECONDS = 10.0  # three round trips to the other side of the world, lost packets included
CLOSE_GRACE = 1.0  # seconds: to read a refused upload to its end, so that the client sees the answer and not a reset


class Connection:
    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: trio.SocketStream,
        send_timeout: float,
        hangups: Hangups,
        pings: Pings,
        certificates: Certificates | None = None,
    ) -> None:
        self.stream = stream
        self._hangups = hangups
        self._pings = pings
        self._ping: Ping | None = None
        self._app = app
        self._config = config
        self._context = context
        self._state = state
        self._send_timeout = send_timeout
        self._certificates = certificates
        self._tls: TlsSession | None = None
        self._early = b""  # what came in one packet with the end of the handshake
        self._scope = trio.CancelScope()
        self._send_lock = trio.Lock()
        self._idle = True  # between requests; a connection begins so
        self._closing = False
        self._file = stream.socket.fileno()  # -1 once closed: its number may then be another's
        self._ending = False  # nothing more will be written
        self._sending = 0  # tasks that wait for the kernel, or for another such task
        self._rest = b""  # of a write_now that the kernel took in part
        self._tasks = TaskGroup()
        self._protocol: H11Protocol | H2Protocol

    async def run(self) -> None:
        with suppress(
            OSError, AttributeError
        ):  # Linux: data that a vanished peer never acknowledges ends the connection
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._send_timeout * 1000))
        try:
            with self._scope:
                await self._converse()
        except* OSError as lost:
            log.debug("connection lost: %s", _one_line(lost))
        except* Exception as failures:
            log.error("connection closed after an error: %s", _one_line(failures))
        finally:
            self._file = -1
            self._hangups.unblock(self)
            if self._ping is not None:
                self._pings.leave(self._ping)
            await trio.aclose_forcefully(self.stream)

    def fileno(self) -> int:
        """Of the socket; negative once it is closed."""
        return self._file

    def keep_pinging(self, ping: Ping) -> None:
        """Call `ping` now and then, as long as the connection is open."""
        self._ping = ping
        self._pings.join(ping)

    def abort(self) -> None:
        """Ends the connection now, also a send that is waiting for the client."""
        self._end()
        self._file = -1
        self.stream.socket.close()

    def close_if_idle(self) -> None:
        if self._idle:
            self._end()

    def _end(self) -> None:
        self._ending = True
        self._scope.cancel()

    async def _converse(self) -> None:
        if self._certificates is not None and not await self._shake_hands(TlsSession(self._certificates.context)):
            return
        async with self._tasks:
            if self._tls is not None and self._tls.protocol == "h2":
                self._protocol = self._http2()
                await self._protocol.initiate()
            else:
                self._protocol = self._http1()
            self._update(idle=True)
            await self._read()
            self._end()  # handlers that have not noticed the end

    def _http1(self) -> GuardedHTTP1:
        self._state[WRITE_CHUNK] = self.write_chunk
        self._state[WRITER] = DirectWriter(self.write_now, self.finish)
        self._state[KEEP_PINGING] = self.keep_pinging
        client, server = self._addresses()
        secure = self._tls is not None
        return GuardedHTTP1(
            self._app, self._config, self._context, self._tasks, self._state, secure, client, server, self._handle
        )

    def _http2(self) -> GuardedHTTP2:
        client, server = self._addresses()
        return GuardedHTTP2(
            self._app,
            self._config,
            self._context,
            self._tasks,
            self._state,
            self._tls is not None,
            client,
            server,
            self._handle,
            self._send_timeout,
        )

    def _addresses(self) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
        """The client's and ours; a Unix socket has none."""
        sock = self.stream.socket
        return parse_socket_addr(sock.family, sock.getpeername()), parse_socket_addr(sock.family, sock.getsockname())

    async def _shake_hands(self, session: TlsSession) -> bool:
        """Whether TLS is spoken from here on."""
        with trio.move_on_after(HANDSHAKE_SECONDS):
            done = False
            while not done:
                try:
                    data = await self.stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        return False
                    done = session.shake_hands(bytes(data))
                except ssl.SSLError:
                    await self._send_waiting(session.take_output())  # the alert says why
                    raise
                except trio.BrokenResourceError:
                    return False
                await self._send_waiting(session.take_output())
            self._tls = session
            self._early, _ = session.decrypt(b"")
            return True
        log.debug("connection closed: the TLS handshake took longer than %g s", HANDSHAKE_SECONDS)
        return False

    async def _read(self) -> None:
        while True:
            try:
                data = await self._receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            if not data:
                break
            if self._closing:
                continue
            self._hangups.block(self)
            try:
                await self._feed(RawData(data))
            except ConnectionRefused as refused:  # the peer has its answer; read on, so that it is not lost in a reset
                log.info("connection refused: %s", refused)
            self._hangups.unblock(self)
        self._hangups.block(self)
        await self._protocol.handle(Closed())

    async def _receive(self) -> bytes:
        """Some bytes of the client's; none at its end."""
        early, self._early = self._early, b""
        while not early:
            data = bytes(await self.stream.receive_some(RECEIVE_BYTES))
            if self._tls is None or self._closing or not data:
                return data
            plain, ended = self._tls.decrypt(data)
            if answer := self._tls.take_output():
                await self._send_all(answer)
            if plain or ended:
                return plain
        return early

    async def _feed(self, event: RawData) -> None:
        try:
            await self._protocol.handle(event)
        except H2ProtocolAssumedError as assumed:
            for http1 in (WRITE_CHUNK, WRITER, KEEP_PINGING):
                del self._state[http1]
            self._protocol = self._http2()
            await self._protocol.initiate()
            await self._protocol.handle(RawData(assumed.data))

    async def _handle(self, event: Event) -> None:
        """What the protocol classes call as `send`."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Updated):
            self._update(idle=event.idle)
        elif isinstance(event, Closed):
            with trio.move_on_after(CLOSE_GRACE, shield=True) as grace:
                await self._close()
            if grace.cancelled_caught:
                self.abort()

    def _update(self, *, idle: bool) -> None:
        self._idle = idle
        if self._closing:
            return
        self._scope.deadline = trio.current_time() + self._config.keep_alive_timeout if idle else math.inf
        if idle and self._context.terminated.is_set():
            self._end()

    def write_chunk(self, data: bytes) -> Written:
        """A chunk of the response body in progress. HTTP/1.1 only."""
        return self.write_now(b"%x\r\n%b\r\n" % (len(data), data))

    def write_now(self, framed: bytes) -> Written:
        """Whole frames of the answer in progress, outside any task: written if the client keeps up.

        `part`: the kernel took the beginning, the next send begins with the rest; it must follow soon. `nothing`: the
        caller must send it in the ordinary way. HTTP/1.1 and its WebSockets only.
        """
        if self._rest or self._closing or self._ending or self._sending:
            return "nothing"
        if self._tls is not None:
            framed = self._tls.encrypt(framed)
        try:
            sent = os.write(self._file, framed)
        except OSError:  # as below
            if self._tls is None:
                return "nothing"
            sent = 0  # what is encrypted has its place in the stream
        if sent == len(framed):
            return "all"
        self._rest = framed[sent:]
        return "part"

    async def finish(self) -> None:
        """Sends the rest of what `write_now` wrote in part."""
        if self._rest:
            await self._send_all(b"")
        await trio.lowlevel.checkpoint()

    async def _send(self, data: bytes) -> None:
        if self._tls is not None:
            if self._closing:  # said already that nothing more comes
                return
            data = self._tls.encrypt(data)
        await self._send_all(data)
        await trio.lowlevel.checkpoint()

    async def _send_all(self, data: bytes) -> None:
        if rest := self._send_nowait(data):
            # Nobody can come between: an uncontended lock is taken before the first yield.
            await self._send_waiting(rest)

    def _send_nowait(self, data: bytes) -> bytes:
        """Gives the kernel what it takes at once and returns the rest: half the cost of a `send_all` per token."""
        if self._sending:
            return data
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            sent = os.write(self._file, data)
        except OSError:  # the socket buffer is full, or the connection is lost: send_all finds out which
            return data
        return data[sent:] if sent < len(data) else b""

    async def _send_waiting(self, data: bytes) -> None:
        self._sending += 1
        with trio.move_on_after(self._send_timeout, shield=True) as deadline:
            try:
                async with self._send_lock:
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._end()
            finally:
                self._sending -= 1
        if deadline.cancelled_caught:
            log.info("connection closed: the client has not read for %g s", self._send_timeout)
            self.abort()

    async def _close(self) -> None:
        """Tells the client that nothing more comes; the reader discards what is still under way, then the end."""
        self._closing = True
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + CLOSE_GRACE)
        try:
            if self._tls is not None:
                await self._send_all(self._tls.close())
            async with self._send_lock:
                await self.stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end()
        await self._protocol.handle(Closed())


def _one_line(group: BaseExceptionGroup[Exception]) -> str:
    return "; ".join(f"{type(error).__name__}: {error}".replace("\n", " ")[:200] for error in _leaves(group))


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
