"""The transport around an application of one line, on sockets in memory: what a client's bytes do to a connection."""

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
import trio.testing
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from triolet.protocol.errors import ApiError
from triolet.web.errors import error_content
from triolet.web.exchange import Content, Exchange, GenerationRoutes, Handshake, Wire, json_content
from triolet.web.timers import ConnectionTimers, Deadlines, Hangups, Pings
from triolet.web.transport.connection import Connection
from triolet.web.transport.transport import _configuration

from ..web.simulation.kernel import ClientSocket, Kernel

Message = dict[str, Any]  # Any: as ASGI has it
LONGEST: Final = 400.0  # simulated seconds: beyond every timeout of a connection
_LOG: Final = logging.getLogger("triolet.http")


class EchoingTalk:
    tenant: str | None = ""

    def begin(self, wire: Wire) -> None:
        self._wire = wire

    async def receive(self, message: str | bytes) -> None:
        await self._wire.send(message.encode() if isinstance(message, str) else message)

    def end(self) -> None: ...


class _NoQuotas:
    def levels(self, tenant: str, now: float) -> tuple[()]:
        return ()


class _NoGateway:
    quotas = _NoQuotas()


class _Errors(logging.Handler):
    """What the transport thinks impossible, it logs."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())

    def handle(self, record: logging.LogRecord) -> bool:
        self.found.append(f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}")
        return True

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello", "more_body": False})


async def echo(exchange: Exchange) -> Content:
    return json_content(await exchange.read_json(lambda data: data))


async def refusal(error: Exception, exchange: Exchange) -> Content:
    if not isinstance(error, ApiError):
        raise error
    return error_content(error)


def open_socket(handshake: Handshake) -> EchoingTalk:
    return EchoingTalk()


def answered(*pieces: bytes) -> bytes:
    """What a client is told that says these, each once all is quiet, and then leaves. The connection must end."""
    errors = _Errors()
    _LOG.addHandler(errors)
    kernel, told = Kernel(random.Random(0)), bytearray()
    try:
        with kernel.in_place():
            trio.run(_converse, kernel, pieces, told, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        _LOG.removeHandler(errors)
    assert not errors.found, errors.found
    assert not kernel.open, "the connection is still open"
    return bytes(told)


async def _converse(kernel: Kernel, pieces: tuple[bytes, ...], told: bytearray) -> None:
    timers = ConnectionTimers(Deadlines(30.0), Deadlines(75.0), Hangups(), Pings(20.0))
    routes = GenerationRoutes(_NoGateway(), refusal, max_body_bytes=2**16)  # type: ignore[arg-type]  # no generation
    routes.handlers["/echo"] = echo
    sock = kernel.connect(("10.0.0.1", 1), room=2**20, window=2**20)
    connection = Connection(
        ASGIWrapper(application),  # type: ignore[arg-type]  # its types are those of every scope
        _configuration(75.0),
        WorkerContext(None),
        ConnectionState({}),
        await kernel.listener.accept(),  # type: ignore[arg-type]  # what it uses of a stream
        30.0,
        timers,
        None,
        routes,
        {"/socket": open_socket},
    )
    with trio.fail_after(LONGEST):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            nursery.start_soon(_speak, sock, pieces)
            nursery.start_soon(_listen, sock, told)
            await connection.run()
            nursery.cancel_scope.cancel()


async def _speak(sock: ClientSocket, pieces: tuple[bytes, ...]) -> None:
    try:
        for piece in pieces:
            await sock.send(piece)
            await trio.sleep(1)
    except BrokenPipeError:
        return
    sock.end()


async def _listen(sock: ClientSocket, told: bytearray) -> None:
    try:
        while data := await sock.receive():
            told += data
    except ConnectionResetError:
        pass
