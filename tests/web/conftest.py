"""A real server on a free port, with a small application whose streams the tests can watch and hold."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from quart import Response

from triolet.web.asgi import Application, current_exchange
from triolet.web.exchange import Wire
from triolet.web.transport.transport import Departure, serve

CANARY_LINES = 20
CANARY_TEXT = "".join(f"data: line {number}\n\n" for number in range(CANARY_LINES))
ReadToEnd = Callable[[trio.SocketStream], Awaitable[bytes]]
FLOOD_CHUNK = b"x" * 4096


class Served:
    """The running server: where it is, how to stop it, and what its streams have done."""

    def __init__(self) -> None:
        self.port = 0
        self.stop = trio.Event()
        self.departure: Departure | None = None  # how it leaves
        self.stopped = trio.Event()
        self.gate = trio.Event()  # canaries pass their middle once it is set
        self.begun = trio.Event()  # /flood or /quiet runs
        self.ended = trio.Event()  # and has unwound
        self.produced = 0  # bytes that /flood could hand over
        self.clients: list[trio.SocketStream] = []

    async def connect(self, receive_buffer: int | None = None) -> trio.SocketStream:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        stream = trio.SocketStream(sock)
        self.clients.append(stream)
        return stream

    async def get(self, path: str) -> bytes:
        """The whole answer of a request on a connection of its own."""
        async with await self.connect() as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return await _read_to_end(stream)


async def _read_to_end(stream: trio.SocketStream) -> bytes:
    """What the server sent until it closed; a reset counts as closed."""
    received = b""
    try:
        async for data in stream:
            received += data
    except trio.BrokenResourceError:
        pass
    return received


class Echo:
    """Says what it hears."""

    tenant: str | None = ""

    def begin(self, wire: Wire) -> None:
        self.wire = wire

    async def receive(self, message: str | bytes) -> None:
        await self.wire.send(message.encode() if isinstance(message, str) else message)

    def end(self) -> None:
        pass


class Deaf:
    """Hears its first message for ever."""

    tenant: str | None = ""

    def __init__(self, served: Served) -> None:
        self._served = served

    def begin(self, wire: Wire) -> None:
        self._served.begun.set()

    async def receive(self, message: str | bytes) -> None:
        await trio.sleep_forever()

    def end(self) -> None:
        self._served.ended.set()


def small_app(served: Served) -> Application:
    settings = SimpleNamespace(access_log=False)
    engine: Any = SimpleNamespace(gateway=None, settings=settings)  # no route of it starts a generation
    app = Application("small", engine, Counter(), max_body_bytes=2**16)
    app.socket_route("/echo", lambda handshake: Echo())
    app.socket_route("/deaf", lambda handshake: Deaf(served))

    async def canary() -> AsyncIterator[bytes]:
        for number in range(CANARY_LINES):
            if number == CANARY_LINES // 2:
                await served.gate.wait()
            yield f"data: line {number}\n\n".encode()

    async def numbers() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield b"%06d," % number * 300

    async def flood() -> AsyncIterator[bytes]:
        served.begun.set()
        try:
            while True:
                yield FLOOD_CHUNK
                served.produced += len(FLOOD_CHUNK)
        finally:
            served.ended.set()

    async def quiet() -> AsyncIterator[bytes]:
        served.begun.set()
        try:
            yield b"data: first\n\n"
            await trio.sleep_forever()
        finally:
            served.ended.set()

    @app.get("/")
    async def index() -> str:
        return "hello"

    @app.post("/upload")
    async def upload() -> str:
        return str(await current_exchange().arriving.read(len, ""))

    @app.get("/canary")
    async def canary_route() -> Response:
        return Response(canary(), content_type="text/event-stream")

    @app.get("/numbers")
    async def numbers_route() -> Response:
        return Response(numbers(), content_type="text/plain")

    @app.get("/flood")
    async def flood_route() -> Response:
        return Response(flood(), content_type="application/octet-stream")

    @app.get("/large")
    async def large_route() -> Response:
        return Response(bytes(2**21), content_type="application/octet-stream")

    @app.get("/quiet")
    async def quiet_route() -> Response:
        return Response(quiet(), content_type="text/event-stream")

    return app


@pytest.fixture
def read_to_end() -> ReadToEnd:
    return _read_to_end


StartServer = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start_server(nursery: trio.Nursery) -> AsyncGenerator[StartServer, None]:
    """Starts servers with the options of `serve`; all are stopped at the end of the test."""
    started: list[Served] = []

    async def run(served: Served, options: dict[str, Any], task_status: trio.TaskStatus[list[str]]) -> None:
        async def stop() -> Departure | None:
            await served.stop.wait()
            return served.departure

        settings: dict[str, Any] = {"drain_timeout": 0.0, "keep_alive_timeout": 60.0} | options
        await serve(
            small_app(served),
            host="127.0.0.1",
            port=0,
            shutdown_trigger=stop,
            task_status=task_status,
            **settings,
        )
        served.stopped.set()

    async def start(**options: Any) -> Served:
        served = Served()
        urls = await nursery.start(partial(run, served, options))
        served.port = int(urls[0].rpartition(":")[2])
        started.append(served)
        return served

    yield start
    with trio.fail_after(10):
        for served in started:
            served.stop.set()
            await served.stopped.wait()
            for client in served.clients:
                await client.aclose()
