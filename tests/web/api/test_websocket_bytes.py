"""The raw bytes of a WebSocket: what its client hears, whatever it sends, and that its end ends what it started."""

import json
import re
import struct
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
import trio
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from triolet.protocol.settings import ServeSettings
from triolet.web.app import create_app
from triolet.web.routes import stream as websocket
from triolet.web.routes.frames import Frames
from triolet.web.transport.transport import serve
from triolet.web.transport.websocket import OpenSocket

from .conftest import Web

SOON = 20.0
WAYS = pytest.mark.parametrize("path", ["/v1/stream", "/v1/str%65am?spelt=oddly"])
KEY = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
UPGRADE = f"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n{KEY}"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def create(id: str) -> TextMessage:
    return TextMessage(data=json.dumps({"type": "create", "id": id, "request": CHAT}))


def client_bytes(*events: Event) -> bytes:
    protocol = Connection(ConnectionType.CLIENT)
    return b"".join(protocol.send(event) for event in events)


class RawClient:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.protocol = Connection(ConnectionType.CLIENT)
        self.heard: list[object] = []  # the server's pings left out

    async def read(self) -> bool:
        """Whether there was something."""
        data = await self.stream.receive_some()
        if data:
            self.protocol.receive_data(data)
            self.heard += [event for event in self.protocol.events() if not isinstance(event, Ping)]
        return bool(data)

    async def hear(self, count: int) -> None:
        while len(self.heard) < count:
            assert await self.read()


async def shake_hands(
    web: Web, path: str, headers: str = UPGRADE, more: bytes = b""
) -> tuple[trio.SocketStream, bytes, bytes]:
    """The stream, the answer's head without its date, and what followed."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(web.url.rpartition(":")[2]))
    await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() + more)
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive_some()
    head, _, rest = received.partition(b"\r\n\r\n")
    return stream, re.sub(rb"\r\ndate: [^\r]*", b"", head), rest


async def opened(web: Web, path: str) -> RawClient:
    stream, head, rest = await shake_hands(web, path)
    assert head.startswith(b"HTTP/1.1 101")
    client = RawClient(stream)
    client.protocol.receive_data(rest)
    assert all(isinstance(event, Ping) for event in client.protocol.events())
    return client


@pytest.fixture
def opened_sockets(monkeypatch: pytest.MonkeyPatch) -> list[OpenSocket]:
    """Those sockets, as they come."""
    found: list[OpenSocket] = []
    begin = OpenSocket.begin

    def spy(self: OpenSocket) -> None:
        found.append(self)
        begin(self)

    monkeypatch.setattr(OpenSocket, "begin", spy)
    return found


@WAYS
@pytest.mark.parametrize(
    ("headers", "more", "status"),
    [
        (UPGRADE, b"", 101),
        (UPGRADE + "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: chat\r\n", b"", 101),
        (UPGRADE + "Origin: https://elsewhere.example\r\n", b"", 403),
        (UPGRADE + "Origin: http://x\r\n", b"", 403),
        (UPGRADE.replace("13", "12"), b"", 400),
        (UPGRADE.replace(KEY, "Sec-WebSocket-Version: 13\r\n"), b"", 400),
        (UPGRADE + "Sec-WebSocket-Protocol: ch\xe4t\r\n", b"", 400),
        (UPGRADE.replace("Upgrade", "Upgrade, \xff", 1), b"", 400),
        (UPGRADE, client_bytes(create("early")), 400),
        (UPGRADE + "Content-Length: 5\r\n", b"", 400),
        (UPGRADE + "Transfer-Encoding: chunked\r\n", b"", 400),
        (UPGRADE + "Content-Length: 0\r\n", b"", 101),
        ("", b"", 426),
    ],
    ids=["plain", "extensions", "foreign", "rebound", "version", "no key", "not ascii", "token not ascii", "too early",
         "a body", "a chunked body", "an empty body", "no upgrade"],
)  # fmt: skip
async def test_handshakes_and_their_answers(web: Web, path: str, headers: str, more: bytes, status: int) -> None:
    with trio.fail_after(SOON):
        stream, head, _ = await shake_hands(web, path, headers, more)
        await stream.aclose()
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head or status != 101
    assert b"sec-websocket-extensions" not in head.lower()


async def test_a_handshake_where_there_is_no_websocket_is_a_request(web: Web) -> None:
    with trio.fail_after(SOON):
        stream, head, _ = await shake_hands(web, "/v1/nothing")
        assert head.startswith(b"HTTP/1.1 404")
        await stream.send_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"live" not in received:
            received += await stream.receive_some()
        await stream.aclose()


CLOSE = CloseConnection(code=4321, reason="enough")
BEGINNING = TextMessage(data='{"type":"cancel",', message_finished=False)
IN_PIECES = client_bytes(BEGINNING, Ping(payload=b"now?"), TextMessage(data='"id":"wörld"}'), create("a"))
TALKS = {  # what the client says, how many answers it waits for before it closes, and the code of the server's closing
    "a request": (client_bytes(create("a")), 6, 4321),
    "in pieces, with a ping between": (IN_PIECES, 7, 4321),
    "nonsense": (client_bytes(TextMessage(data="nonsense"), Ping(payload=b"still there?")), 2, 4321),
    "binary": (client_bytes(BytesMessage(data=b"\x00")), 2, 1003),
    "a pong nobody asked for": (client_bytes(Pong(payload=b"x"), Ping(payload=b"y")), 1, 4321),
    "closing": (client_bytes(CLOSE), 1, 4321),
    "closing without a code": (b"\x88\x80\x00\x00\x00\x00", 1, 1005),
    "closing with half a code": (b"\x88\x81\x00\x00\x00\x00\x01", 1, 1002),
    "not masked": (b"\x81\x05hello", 1, 1002),
    "not UTF-8": (b"\x81\x81\x00\x00\x00\x00\xff", 1, 1007),
    "compressed": (b"\xc1\x81\x00\x00\x00\x00a", 1, 1002),
    "a continuation of nothing": (b"\x80\x81\x00\x00\x00\x00a", 1, 1002),
    "endless": (client_bytes(*[TextMessage(data="x" * 2**20, message_finished=False)] * 5), 1, 1009),
}


def comparable(event: object) -> object:
    """Names and times differ."""
    if not isinstance(event, TextMessage):
        return event
    frame = json.loads(event.data)
    return {name: value for name, value in frame.items() if name not in ("timing", "request_id")}


async def hear_out(web: Web, said: bytes, answers: int, piece: int) -> list[object]:
    """What the server answers when it hears this in pieces of that size, and then a closing frame."""
    client = await opened(web, "/v1/stream")
    with suppress(trio.BrokenResourceError):  # the server has heard enough
        for at in range(0, len(said), piece):
            await client.stream.send_all(said[at : at + piece])
    await client.hear(answers)
    with suppress(trio.BrokenResourceError):
        await client.stream.send_all(client_bytes(CLOSE))  # the server has closed, or does so now
        while await client.read():
            pass
    await client.stream.aclose()
    pongs = [event for event in client.heard if isinstance(event, Pong)]  # a request's task may come after them
    return pongs + [comparable(event) for event in client.heard if event not in pongs]


@pytest.mark.parametrize("talk", TALKS)
async def test_a_client_hears_the_same_whatever_pieces_it_sends(web: Web, talk: str) -> None:
    said, answers, code = TALKS[talk]
    with trio.fail_after(SOON):
        at_once = await hear_out(web, said, answers, 1 << 20)
        assert at_once == await hear_out(web, said, answers, 1 if len(said) <= 1000 else 1 << 16)
    assert isinstance(at_once[-1], CloseConnection)
    assert at_once[-1].code == code
    assert len(at_once) >= answers


async def test_nothing_is_kept_of_a_message_once_it_was_read(web: Web, opened_sockets: list[OpenSocket]) -> None:
    beginning = len(client_bytes(BEGINNING))
    with trio.fail_after(SOON):
        client = await opened(web, "/v1/stream")
        await client.stream.send_all(IN_PIECES[:1])
        while not opened_sockets:  # the client has its answer a moment earlier
            await trio.lowlevel.checkpoint()
        (socket,) = opened_sockets
        while socket._partial is None:  # a part of a frame
            await trio.lowlevel.checkpoint()
        await client.stream.send_all(IN_PIECES[1:beginning])
        while socket._pieces is None:  # a part of a message
            await trio.lowlevel.checkpoint()
        await client.stream.send_all(IN_PIECES[beginning:])
        await client.hear(7)
        assert socket._partial is None
        assert socket._pieces is None
        await client.stream.aclose()


@WAYS
@pytest.mark.parametrize("how", ["end", "reset", "closing frame", "server"])
async def test_whoever_ends_the_socket_ends_its_requests(
    web: Web, scripts: SimpleNamespace, path: str, how: str
) -> None:
    web.engine.script = scripts.flow
    with trio.fail_after(SOON):
        client = await opened(web, path)
        await client.stream.send_all(client_bytes(create("a"), create("b")))
        await client.hear(4)
        assert web.engine.gateway.live_requests == 2
        assert len(web.engine.gateway.on_news) == 1
        if how == "reset":
            client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how in ("end", "reset"):
            await client.stream.aclose()
        else:
            await client.stream.send_all(client_bytes(CLOSE) if how == "closing frame" else b"\x82\x80\x00\x00\x00\x00")
        await web.engine.gateway.wait_idle()
        await client.stream.aclose()
        assert not web.engine.gateway.on_news


@WAYS
async def test_a_server_that_is_cancelled_ends_the_requests_of_its_sockets(
    web: Web, scripts: SimpleNamespace, path: str
) -> None:
    web.engine.script = scripts.flow
    async with trio.open_nursery() as nursery:
        app = create_app(web.engine)  # type: ignore[arg-type]  # the web's part of one
        serve_again = partial(serve, app, host="127.0.0.1", port=0, drain_timeout=0.0)
        urls = await nursery.start(partial(serve_again, shutdown_trigger=trio.sleep_forever))
        with trio.fail_after(SOON):
            client = await opened(web._replace(url=urls[0]), path)
            await client.stream.send_all(client_bytes(create("a")))
            await client.hear(2)
        nursery.cancel_scope.cancel()
    assert web.engine.gateway.live_requests == 0
    assert not web.engine.gateway.on_news
    await client.stream.aclose()


@WAYS
async def test_a_bug_in_a_request_ends_its_socket_alone(
    web: Web, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("a bug")

    with trio.fail_after(SOON):
        client = await opened(web, path)
        other = await opened(web, "/v1/stream")
        web.engine.script = scripts.flow
        await other.stream.send_all(client_bytes(create("b")))
        await other.hear(2)
        with monkeypatch.context() as patch:
            patch.setattr(Frames, "encode", break_down)
            await client.stream.send_all(client_bytes(create("a")))
            while await client.read():
                pass
        assert [event.code for event in client.heard if isinstance(event, CloseConnection)] == [1011]
        web.engine.token(web.engine.requests[0], "still here")
        await other.hear(3)
        assert web.engine.gateway.live_requests == 1
        await client.stream.aclose()
        await other.stream.aclose()
    assert "a bug" in caplog.text


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first",))

    @WAYS
    async def test_a_socket_that_never_says_its_key_is_closed(
        self, web: Web, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.setattr(websocket, "AUTH_SECONDS", 0.05)
        with trio.fail_after(SOON):
            client = await opened(web, path)
            while await client.read():
                pass
            await client.stream.aclose()
        error, close = client.heard
        assert isinstance(error, TextMessage)
        assert json.loads(error.data)["error"]["message"] == "The `auth` frame did not come."
        assert close == CloseConnection(code=1008, reason="")

    @WAYS
    async def test_a_socket_that_said_its_key_in_time_stays(
        self, web: Web, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.setattr(websocket, "AUTH_SECONDS", 0.05)
        with trio.fail_after(SOON):
            client = await opened(web, path)
            await client.stream.send_all(client_bytes(TextMessage(data='{"type":"auth","api_key":"first"}')))
            began, answers = trio.current_time(), 0
            while not answers or trio.current_time() < began + 0.1:  # past the time that it had
                answers += 1
                await client.stream.send_all(client_bytes(create("a")))
                await client.hear(6 * answers)
            await client.stream.aclose()
