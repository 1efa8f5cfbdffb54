"""One TCP connection, from its first byte to its last: reads, feeds hypercorn's protocol classes, sends, closes.

Takes the place of hypercorn's TCPServer, whose defects end the process or leak the socket. What holds here:

- Nothing that goes wrong in a connection leaves `run`, except cancellation from outside.
- What the protocol sends leaves whole, or the connection ends (web/guard_sending.py).
- Closing and recycling finish although the handler was cancelled: quart-trio cancels it on the `http.disconnect` that
  hypercorn itself sends at the end of every response. The keep-alive time is the deadline of the connection's scope.
- TLS (web/tls_session.py) is a change of bytes between the socket and the protocol: it is spoken from the first byte,
  and the handshake has HANDSHAKE_SECONDS.
- A client that closes its side (half-close too) is gone: its handlers are cancelled. While the reader is not reading,
  web/hangups.py looks for the hang-up by other means.
"""

import logging
import math
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
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

from .conversation import Conversation, Opener
from .direct import KEEP_PINGING, WRITE_CHUNK, WRITER, DirectWriter
from .guard_http1 import GuardedHTTP1
from .guard_http2 import GuardedHTTP2
from .guard_open_socket import SOCKETS, OpenSocket, Sockets
from .guard_refusal import ConnectionRefused
from .guard_sending import Sending
from .hangups import Hangups
from .pings import Ping, Pings
from .tls_context import Certificates
from .tls_session import TlsSession

log = logging.getLogger("triolet.http")

RECEIVE_BYTES = 2**16
HANDSHAKE_SECONDS = 10.0  # three round trips to the other side of the world, lost packets included
CLOSE_GRACE = 1.0  # seconds: to read a refused upload to its end, so that the client sees the answer and not a reset

_NO_SOCKETS: Mapping[bytes, Opener] = {}


class Connection:
    __slots__ = (
        "_app", "_certificates", "_closing", "_config", "_context", "_early", "_hangups", "_idle", "_nursery", "_ping",
        "_pings", "_protocol", "_send_timeout", "_sending", "_sockets", "_state", "stream",
    )  # fmt: skip

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
        sockets: Mapping[bytes, Opener] = _NO_SOCKETS,
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
        self._sockets = sockets
        self._early = b""  # what came in one packet with the end of the handshake
        self._idle = True  # between requests; a connection begins so
        self._closing = False
        self._sending = Sending(stream, send_timeout, self._end, self.abort)
        self._nursery: trio.Nursery  # from `run` on; its scope is the connection's
        self._protocol: H11Protocol | H2Protocol | OpenSocket

    async def run(self) -> None:
        with suppress(
            OSError, AttributeError
        ):  # Linux: data that a vanished peer never acknowledges ends the connection
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._send_timeout * 1000))
        try:
            async with trio.open_nursery() as self._nursery:
                await self._converse()
        except* OSError as lost:
            log.debug("connection lost: %s", _one_line(lost))
        except* Exception as failures:
            log.error("connection closed after an error: %s", _one_line(failures))
        finally:
            self._sending.forget_file()
            self._hangups.unblock(self)
            await trio.aclose_forcefully(self.stream)

    def fileno(self) -> int:
        """Of the socket; negative once it is closed."""
        return self._sending.fileno()

    def keep_pinging(self, ping: Ping) -> None:
        """Call `ping` now and then, as long as the connection is open."""
        self._ping = ping
        self._pings.join(ping)

    def abort(self) -> None:
        """Ends the connection now, also a send that is waiting for the client."""
        self._end()
        self._sending.forget_file()
        self.stream.socket.close()

    def close_if_idle(self) -> None:
        if self._idle:
            self._end()

    def _end(self) -> None:
        self._sending.ended = True
        self._nursery.cancel_scope.cancel()

    async def _converse(self) -> None:
        if self._certificates is not None and not await self._shake_hands(TlsSession(self._certificates.context)):
            return
        if self._sending.tls is not None and self._sending.tls.protocol == "h2":
            self._protocol = protocol = self._http2()
            await protocol.initiate()
        else:
            self._protocol = self._http1()
        self._update(idle=True)
        try:
            await self._read()
        finally:  # a ping may start a task, so none comes once there is no nursery for it
            if self._ping is not None:
                self._pings.leave(self._ping)
            if isinstance(self._protocol, OpenSocket):
                self._protocol.leave()
        self._end()  # handlers that have not noticed the end

    def _http1(self) -> GuardedHTTP1:
        self._state[WRITE_CHUNK] = self._sending.write_chunk
        self._state[WRITER] = DirectWriter(self._sending.write_now, self._sending.finish)
        self._state[KEEP_PINGING] = self.keep_pinging
        self._state[SOCKETS] = Sockets(self._sockets, self._open_socket)
        client, server = self._addresses()
        secure = self._sending.tls is not None
        return GuardedHTTP1(
            self._app, self._config, self._context, self._tasks(), self._state, secure, client, server, self._handle
        )

    def _http2(self) -> GuardedHTTP2:
        client, server = self._addresses()
        return GuardedHTTP2(
            self._app,
            self._config,
            self._context,
            self._tasks(),
            self._state,
            self._sending.tls is not None,
            client,
            server,
            self._handle,
            self._send_timeout,
        )

    def _tasks(self) -> TaskGroup:
        """The nursery as hypercorn knows it."""
        tasks = TaskGroup()
        tasks._nursery = self._nursery  # pyright: ignore[reportPrivateUsage]
        return tasks

    def _open_socket(self, conversation: Conversation) -> None:
        """The handshake is answered: HTTP is over, and what spoke it is forgotten."""
        maximum = self._config.websocket_max_message_size
        socket = OpenSocket(conversation, self._sending, self._nursery, self._hang_up, maximum)
        self._protocol = socket
        self._state.clear()
        socket.begin()
        self.keep_pinging(socket.ping)

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
                    await self._sending.send_waiting(session.take_output())  # the alert says why
                    raise
                except trio.BrokenResourceError:
                    return False
                await self._sending.send_waiting(session.take_output())
            self._sending.tls = session
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
            data = self._receive_now()
            if data is None:
                # Not `stream.receive_some`: what it keeps while it waits is a kilobyte and a half of every idle socket.
                await trio.lowlevel.wait_readable(self._sending.fileno())
                continue
            await trio.lowlevel.checkpoint()  # a client that sends without end gets a turn, and meets its deadline
            if self._sending.tls is None or self._closing or not data:
                return data
            plain, ended = self._sending.tls.decrypt(data)
            if answer := self._sending.tls.take_output():
                await self._sending.send_all(answer)
            if plain or ended:
                return plain
        return early

    def _receive_now(self) -> bytes | None:
        """What is there; None: nothing yet."""
        file = self._sending.fileno()
        try:
            return os.read(file, RECEIVE_BYTES) if file >= 0 else b""
        except BlockingIOError:
            return None
        except OSError:  # the client has gone without a word
            return b""

    async def _feed(self, event: RawData) -> None:
        try:
            await self._protocol.handle(event)
        except H2ProtocolAssumedError as assumed:
            for http1 in (WRITE_CHUNK, WRITER, KEEP_PINGING, SOCKETS):
                del self._state[http1]
            self._protocol = protocol = self._http2()
            await protocol.initiate()
            await protocol.handle(RawData(assumed.data))

    async def _handle(self, event: Event) -> None:
        """What the protocol classes call as `send`."""
        if isinstance(event, RawData):
            await self._sending.send(event.data)
        elif isinstance(event, Updated):
            self._update(idle=event.idle)
        elif isinstance(event, Closed):
            await self._hang_up()

    async def _hang_up(self) -> None:
        with trio.move_on_after(CLOSE_GRACE, shield=True) as grace:
            await self._close()
        if grace.cancelled_caught:
            self.abort()

    def _update(self, *, idle: bool) -> None:
        self._idle = idle
        if self._closing:
            return
        seconds = self._config.keep_alive_timeout if idle else math.inf
        self._nursery.cancel_scope.deadline = trio.current_time() + seconds
        if idle and self._context.terminated.is_set():
            self._end()

    async def _close(self) -> None:
        """Tells the client that nothing more comes; the reader discards what is still under way, then the end."""
        self._closing = self._sending.ended = True
        scope = self._nursery.cancel_scope
        scope.deadline = min(scope.deadline, trio.current_time() + CLOSE_GRACE)
        try:
            await self._sending.say_end()
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
