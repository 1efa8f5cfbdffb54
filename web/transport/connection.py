"""One TCP connection, from its first byte to its last: reads, feeds hypercorn's protocol classes, sends, closes.

Takes the place of hypercorn's TCPServer, whose defects end the process or leak the socket. What holds here:

- Nothing that goes wrong in a connection leaves `run`, except cancellation from outside.
- What the protocol sends leaves complete, or the connection ends (sending.py).
- Closing and recycling finish even if the handler is cancelled. quart-trio cancels it on the `http.disconnect` that
  hypercorn sends after every response.
- Between requests a connection has its keep-alive timeout, and a request's head its own time from its first byte on
  (timers.py). A new connection has that time for its first head.
- TLS (tls.py) transforms bytes between socket and protocol, from the first byte on.
- Only plain requests on HTTP/1.1 (plain_http1.py) and open WebSockets (websocket.py) bypass the protocol classes.
- A client that closes its side, even half, is gone: its handlers are cancelled. While the reader is blocked,
  timers.py detects the hang-up.
"""

import logging
import socket
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

from ..exchange import ADDRESS, WRITE_CHUNK, Conversation, GenerationRoutes, Opener
from ..timers import ConnectionTimers
from .http1 import ConnectionRefused, GuardedHTTP1, ProtocolArguments
from .http2 import GuardedHTTP2
from .plain_http1 import PlainHTTP1
from .receiving import Receiving
from .sending import Sending
from .tls import Certificates, TlsSession
from .websocket import OpenSocket

log = logging.getLogger("triolet.http")

CLOSE_GRACE = 1.0  # seconds to discard a refused upload, so the client sees the answer and not a reset

_NO_SOCKETS: Mapping[str, Opener] = {}


class Connection:
    __slots__ = (
        "_app", "_awaits_head", "_certificates", "_closing", "_config", "_context", "_generation", "_idle", "_nursery",
        "_plain", "_protocol", "_receiving", "_send_timeout", "_sending", "_sockets", "_state", "_timers", "origin",
        "stream",
    )  # fmt: skip

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: trio.SocketStream,
        send_timeout: float,
        timers: ConnectionTimers,
        certificates: Certificates | None = None,
        generation: GenerationRoutes | None = None,
        sockets: Mapping[str, Opener] = _NO_SOCKETS,
    ) -> None:
        self.stream = stream
        self.origin: str | None = None  # its address, as capacity.py counts them
        self._timers = timers
        self._app = app
        self._config = config
        self._context = context
        self._state = state
        self._send_timeout = send_timeout
        self._certificates = certificates
        self._generation = generation
        self._sockets = sockets
        self._idle = True  # between requests, and at first
        self._awaits_head = False  # its first, or one that has begun
        self._closing = False
        self._sending = Sending(stream, send_timeout, self._end, self.abort, self._stall)
        self._receiving = Receiving(stream, self._sending)
        self._nursery: trio.Nursery  # set by `run`; its scope is the connection's
        self._protocol: H11Protocol | H2Protocol | OpenSocket
        self._plain: PlainHTTP1 | None = None  # set if HTTP/1.1 is spoken

    async def run(self) -> None:
        # Linux: data that a vanished peer never acknowledges ends the connection. So does that of one which does not
        # read, counted from when its own buffer is full; so twice the time, or the answer's end would never be sent.
        with suppress(OSError, AttributeError):
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2 * self._send_timeout * 1000))
        try:
            async with trio.open_nursery() as self._nursery:
                await self._converse()
        except* OSError as lost:
            log.debug("connection lost: %s", _one_line(lost))
        except* Exception as failures:
            log.error("connection closed after an error: %s", _one_line(failures))
        finally:
            self._sending.forget_file()
            self._forget_deadline()
            self._timers.hangups.unblock(self)
            self.stream.socket.close()
            self._let_go()

    def _let_go(self) -> None:
        """Drop what refers back to here: 45 objects in a cycle would stay until a collection, which comes rarely."""
        self._sending.let_go()
        self._plain = None
        self._state.clear()
        del self._nursery
        with suppress(AttributeError):  # there is none before the TLS handshake
            if isinstance(self._protocol, GuardedHTTP2):
                self._protocol.let_go()
            del self._protocol

    def fileno(self) -> int:
        """The socket's descriptor; negative once it is closed."""
        return self._sending.fileno()

    def abort(self) -> None:
        """End the connection now, including a send that waits for the client."""
        self._end()
        self._sending.forget_file()
        self.stream.socket.close()

    def _stall(self) -> None:
        """The client does not read: the connection will end soon, and the plain request on it ends now."""
        if self._plain is not None:
            self._plain.stall()

    def close_if_idle(self) -> None:
        if self._idle:
            self._end()

    def _end(self) -> None:
        self._sending.ended = True
        self._nursery.cancel_scope.cancel()

    async def _converse(self) -> None:
        if self._certificates is not None and not await self._receiving.shake_hands(
            TlsSession(self._certificates.context)
        ):
            return
        if self._sending.tls is not None and self._sending.tls.protocol == "h2":
            self._protocol = protocol = self._http2()
            await protocol.initiate()
        else:
            self._protocol = self._http1()
        self._state[ADDRESS] = self.origin
        self._await_head()
        self._update(idle=True)
        try:
            await self._read()
        finally:  # a ping may start a task, so stop pings before the nursery ends
            if isinstance(self._protocol, OpenSocket):
                self._timers.pings.leave(self._protocol.ping)
                self._protocol.leave()
        self._end()  # stops handlers that have not noticed the end

    def _http1(self) -> GuardedHTTP1:
        self._state[WRITE_CHUNK] = self._sending.write_now
        arguments = self._arguments()
        protocol = GuardedHTTP1(arguments)
        protocol.openers, protocol.converse = self._sockets, self._open_socket
        if self._generation is not None:
            self._plain = PlainHTTP1(
                self._generation, self._sending, arguments.tasks, protocol, self._update, self._close, self.origin
            )
        return protocol

    def _http2(self) -> GuardedHTTP2:
        return GuardedHTTP2(self._arguments(), self._send_timeout)

    def _arguments(self) -> ProtocolArguments:
        tasks = TaskGroup()  # the nursery as hypercorn knows it
        tasks._nursery = self._nursery  # pyright: ignore[reportPrivateUsage]  # no public way
        sock = self.stream.socket  # a Unix socket has no addresses
        client, server = (parse_socket_addr(sock.family, name()) for name in (sock.getpeername, sock.getsockname))
        secure = self._sending.tls is not None
        return ProtocolArguments(
            self._app, self._config, self._context, tasks, self._state, secure, client, server, self._handle
        )

    def _open_socket(self, conversation: Conversation) -> None:
        """The handshake was answered: HTTP is over, and its protocol objects are dropped."""
        maximum = self._config.websocket_max_message_size
        assert self._generation is not None  # sockets belong to an Application
        socket = OpenSocket(conversation, self._sending, self._nursery, self._close, maximum, self._generation.bodies)
        self._protocol, self._plain = socket, None
        self._state.clear()
        socket.begin()
        self._timers.pings.join(socket.ping)

    async def _read(self) -> None:
        while True:
            try:
                data = await self._receiving.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            if not data:
                break
            if self._closing or (self._plain is not None and not (data := self._plain.take(data))):
                continue
            self._timers.hangups.block(self)
            try:
                await self._feed(data)
            except ConnectionRefused as refused:  # the peer has its answer; read on, or a reset could lose it
                log.info("connection refused: %s", refused)
            self._timers.hangups.unblock(self)
            if self._idle and not self._awaits_head and self._head_begun:
                self._await_head()
        self._timers.hangups.block(self)
        await self._protocol.handle(Closed())

    async def _feed(self, data: bytes) -> None:
        while self._plain is not None and self._plain.busy:
            await self._plain.wait_answered()
            if self._closing or not (data := self._plain.take(data)):
                return
        try:
            await self._protocol.handle(RawData(data))
        except H2ProtocolAssumedError as assumed:
            del self._state[WRITE_CHUNK]
            self._plain = None
            self._protocol = protocol = self._http2()
            await protocol.initiate()
            await protocol.handle(RawData(assumed.data))

    async def _handle(self, event: Event) -> None:
        """The `send` of the protocol classes."""
        if isinstance(event, RawData):
            await self._sending.send(event.data)
        elif isinstance(event, Updated):
            self._update(idle=event.idle)
        elif isinstance(event, Closed):
            await self._close()

    def _update(self, idle: bool) -> None:
        changed, self._idle = idle is not self._idle, idle
        if self._closing:
            return
        if not idle:
            self._forget_deadline()
        elif self._context.terminated.is_set():
            self._end()
        elif changed:  # else a frame now and then would keep a connection without a request
            self._timers.idle.set(self, self._end, self.origin)

    @property
    def _head_begun(self) -> bool:
        return isinstance(self._protocol, GuardedHTTP1) and self._protocol.head_begun

    def _await_head(self) -> None:
        self._forget_deadline()
        self._awaits_head = True
        self._timers.heads.set(self, self._give_up_head, self.origin)

    def _give_up_head(self) -> None:
        protocol = self._protocol
        if isinstance(protocol, GuardedHTTP1) and protocol.head_begun:
            self._closing = True  # what still arrives of it is late
            self._nursery.start_soon(protocol.refuse_slow_head)
        else:
            self._end()

    def _forget_deadline(self) -> None:
        (self._timers.heads if self._awaits_head else self._timers.idle).forget(self)
        self._awaits_head = False

    async def _close(self) -> None:
        """Tell the client that nothing more comes. The reader discards what is still arriving, then ends."""
        self._closing = self._sending.ended = True
        self._forget_deadline()
        self._nursery.cancel_scope.deadline = trio.current_time() + CLOSE_GRACE
        with trio.move_on_after(CLOSE_GRACE, shield=True) as grace:
            try:
                await self._sending.say_end()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._end()
            await self._protocol.handle(Closed())
        if grace.cancelled_caught:
            self.abort()


def _one_line(group: BaseExceptionGroup[Exception]) -> str:
    return "; ".join(f"{type(error).__name__}: {error}".replace("\n", " ")[:200] for error in _leaves(group))


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
