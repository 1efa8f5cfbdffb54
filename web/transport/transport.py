"""Serves the application over HTTP/1.1, HTTP/2 and WebSockets, with or without TLS, until it has to stop.

Built on hypercorn 0.18's protocol classes, which are private. The version is pinned, and tests/web/test_pins.py
checks what we rely on. No input may end the process (tests/web/transport/test_hostile.py).

Stopping: no new connections, idle ones are closed, requests in flight get `drain_timeout`. Then `on_drain_timeout` ends
the remaining requests, and their last events get LAST_WORDS_SECONDS. What is still open is aborted, so a client that
does not read causes no further delay. A WebSocket counts as in flight until its handler returns. `Departure` is kinder.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from quart_trio import QuartTrio

from ..asgi import Application
from ..timers import ConnectionTimers, Deadlines, Hangups, Pings
from .capacity import ConnectionPlaces, origin_of
from .connection import Connection
from .listening import BACKLOG, urls_of
from .plain_head import HEADER_BYTES
from .sending import LAST_WORDS_SECONDS
from .tls import Certificates

log = logging.getLogger("triolet.http")

WEBSOCKET_MESSAGE_BYTES = 4 * 1024 * 1024  # same limit as an HTTP body
WEBSOCKET_PING_SECONDS = 20.0
HEAD_SECONDS = 30.0  # for the head of a request, from its first byte on


class Departure(NamedTuple):
    """Others listen on the same sockets from now on: how to leave, so that no client notices."""

    linger: float  # seconds in which open connections may ask once more; each answer then closes its connection
    drain: float  # seconds for the answers after that
    on_closed: Callable[[], Awaitable[None]]  # called when no connection is accepted any more
    on_lingered: Callable[[], None]  # from now on new requests are to be refused
    wait_idle: Callable[[], Awaitable[None]]  # for requests without a connection


class Connections:
    """The open connections, and an event set when the last one has ended."""

    def __init__(self, places: ConnectionPlaces) -> None:
        self._places = places
        self._open: set[Connection] = set()
        self._draining: trio.Event | None = None

    async def run(self, connection: Connection) -> None:
        """Run it if there is a place for it; the caller closes its stream."""
        sock = connection.stream.socket
        try:
            origin = None if sock.family == socket.AF_UNIX else origin_of(sock.getpeername()[0])
        except OSError:  # it has left
            return
        if not self._places.take(origin):
            return
        connection.origin = origin
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            self._places.leave(origin)
            if self._draining is not None and not self._open:
                self._draining.set()

    async def drain(self, timeout: float) -> bool:
        """Close idle connections and wait up to `timeout` for the rest; returns whether all ended."""
        for connection in self._open:
            connection.close_if_idle()
        return await self.wait_ended(timeout)

    async def wait_ended(self, timeout: float) -> bool:
        """Wait up to `timeout` for all to end; returns whether they have."""
        self._draining = trio.Event()
        with trio.move_on_after(timeout):
            if self._open:
                await self._draining.wait()
        return not self._open

    def abort_all(self) -> None:
        for connection in self._open:
            connection.abort()


async def serve(
    app: QuartTrio,
    *,
    host: str,
    port: int,
    sockets: Sequence[socket.socket] | None = None,
    certificates: Certificates | None = None,
    drain_timeout: float,
    send_timeout: float = 30.0,
    keep_alive_timeout: float = 75.0,
    max_connections: int = 10_000,
    shutdown_trigger: Callable[[], Awaitable[Departure | None]],
    on_drain_timeout: Callable[[], None] = lambda: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown_trigger` returns. `task_status` gets the URLs, with the real port if 0 was asked.

    `sockets` are already bound and replace host and port; `certificates` turn on TLS, with HTTP/2 by ALPN.
    `on_drain_timeout` must make every request in flight end soon. Idle connections count among `max_connections` too,
    but make room for new ones.
    """
    config = _configuration(keep_alive_timeout)
    wrapped = ASGIWrapper(app)
    state: LifespanState = {}
    lifespan = Lifespan(wrapped, config, state)
    context = WorkerContext(None)
    generation = app.generation if isinstance(app, Application) else None
    openers = app.sockets if isinstance(app, Application) else {}
    timers = ConnectionTimers(
        Deadlines(HEAD_SECONDS), Deadlines(keep_alive_timeout), Hangups(), Pings(WEBSOCKET_PING_SECONDS)
    )
    connections = Connections(ConnectionPlaces(max_connections, timers.displace))

    def accept(stream: trio.SocketStream) -> Awaitable[None]:
        connection = Connection(
            wrapped,
            config,
            context,
            ConnectionState(state.copy()),
            stream,
            send_timeout,
            timers,
            certificates,
            generation,
            openers,
        )
        return connections.run(connection)

    if sockets is None:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    else:
        listeners = [_listener(sock) for sock in sockets]
    urls = urls_of((listener.socket for listener in listeners), secure=certificates is not None)
    try:
        async with trio.open_nursery() as lifespan_nursery:
            await lifespan_nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(timers.run)
                if isinstance(app, Application):
                    nursery.start_soon(app.openings.run)
                try:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(partial(trio.serve_listeners, accept, listeners, handler_nursery=nursery))
                        task_status.started(urls)
                        departure = await shutdown_trigger()
                        accepting.cancel_scope.cancel()
                    await context.terminated.set()
                    if departure is not None:
                        await departure.on_closed()
                        await connections.wait_ended(departure.linger)
                        departure.on_lingered()
                        drain_timeout = departure.drain
                    began = trio.current_time()
                    if not await connections.drain(drain_timeout):
                        on_drain_timeout()
                        await connections.drain(LAST_WORDS_SECONDS)
                    if departure is not None:
                        with trio.move_on_at(began + drain_timeout):
                            await departure.wait_idle()
                finally:
                    connections.abort_all()
                    nursery.cancel_scope.cancel()
            await lifespan.wait_for_shutdown()
            lifespan_nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


def _configuration(keep_alive_timeout: float) -> Config:
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.h11_max_incomplete_size = HEADER_BYTES
    config.h2_max_header_list_size = HEADER_BYTES
    config.keep_alive_timeout = keep_alive_timeout
    config.websocket_max_message_size = WEBSOCKET_MESSAGE_BYTES
    return config


def _listener(sock: socket.socket) -> trio.SocketListener:
    sock.listen(BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
