"""An open WebSocket: frames out and in, no compression, and the end of one that is malformed, endless or closed.

Its end is the end: its conversation hears no message after it, its client no ping.
"""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from hypercorn.events import RawData
from wsproto import WSConnection
from wsproto.connection import Connection, ConnectionType
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong, Request, TextMessage

from triolet.web.body_budget import SMALL_BYTES, BodyBudget, BodyShare
from triolet.web.exchange import Wire
from triolet.web.transport.sending import Sending
from triolet.web.transport.websocket import UNANSWERED_PINGS, OpenSocket

from ..conftest import StartServer

SOON = 20.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
HANDSHAKE = (
    b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
TRIES = 20  # trio runs two tasks of one tick in either order


class ClosingSoon:
    """Another task closes the socket that its first message came by."""

    tenant: str | None = ""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []

    def begin(self, wire: Wire) -> None:
        self._wire = wire

    async def receive(self, message: str | bytes) -> None:
        self.heard.append(message)
        self._wire.nursery.start_soon(self._close)  # runs while the socket looks for the next message, or just after

    def end(self) -> None:
        self.heard.append("the end")

    async def _close(self) -> None:
        self._wire.close(1001)


@pytest.fixture
def conversation() -> ClosingSoon:
    return ClosingSoon()


@asynccontextmanager
async def opened(
    conversation: ClosingSoon, max_message: int = 1000, bodies: BodyBudget | None = None
) -> AsyncGenerator[tuple[OpenSocket, trio.SocketStream]]:
    """The socket, and its client's stream, at whose end it is closed."""
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(sock)) for sock in socket.socketpair())
    sending = Sending(ours, 20.0, lambda: None, lambda: None)
    with trio.fail_after(20.0):
        async with ours, theirs, trio.open_nursery() as nursery:
            open_socket = OpenSocket(
                conversation, sending, nursery, ours.send_eof, max_message, bodies or BodyBudget(2**20)
            )
            open_socket.begin()
            yield open_socket, theirs


async def test_no_message_follows_the_end_that_another_task_makes(conversation: ClosingSoon) -> None:
    client = Connection(ConnectionType.CLIENT)
    data = client.send(TextMessage(data="a")) + client.send(TextMessage(data="b"))
    for _ in range(TRIES):
        async with opened(conversation) as (open_socket, _):
            await open_socket.handle(RawData(data))
        assert conversation.heard.pop() == "the end"
        assert "the end" not in conversation.heard
        conversation.heard.clear()


async def test_a_ping_that_waits_does_not_follow_the_closing_frame(conversation: ClosingSoon) -> None:
    async with opened(conversation) as (open_socket, stream):
        write = partial(open_socket._sending.write_now, b"\x82\x7e\x10\x00" + bytes(4096))
        while write() == "all":  # until the kernel takes no more
            pass
        open_socket.ping()
        open_socket.close(1001)
        received = b"".join([data async for data in stream])
    assert received.endswith(Connection(ConnectionType.SERVER).send(CloseConnection(code=1001)))
    assert received.count(b"\x89\x00") == 1  # the first one, as it was opened


def frames(close: bytes) -> list[Event]:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(close)
    return [event for event in client.events() if not isinstance(event, Ping | Pong)]


async def test_before_the_key_no_large_message_is_collected(conversation: ClosingSoon) -> None:
    conversation.tenant = None
    client = Connection(ConnectionType.CLIENT)
    async with opened(conversation, max_message=2**20) as (open_socket, stream):
        await open_socket.handle(RawData(client.send(TextMessage(data="k" * 5000, message_finished=False))))
        received = b"".join([data async for data in stream])
    (close,) = frames(received)
    assert isinstance(close, CloseConnection)
    assert close.code == 1009
    assert conversation.heard == ["the end"]


async def test_a_message_for_which_there_is_no_room_is_refused(conversation: ClosingSoon) -> None:
    client = Connection(ConnectionType.CLIENT)
    bodies = BodyBudget(2**17)
    others = BodyShare(bodies)
    assert others.grow(SMALL_BYTES + 2**16, "other")
    large = client.send(TextMessage(data="k" * 3 * 2**16, message_finished=False))
    async with opened(conversation, max_message=2**20, bodies=bodies) as (open_socket, stream):
        await open_socket.handle(RawData(large))
        received = b"".join([data async for data in stream])
    (close,) = frames(received)
    assert isinstance(close, CloseConnection)
    assert close.code == 1013
    others.release()
    assert bodies.take("", 2**16)  # everything was given back


async def test_a_message_counts_until_it_is_handled(conversation: ClosingSoon, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, room = BodyBudget(2**18), list[bool]()

    async def receive(message: str | bytes) -> None:
        room.append(bodies.take("other", 2**16 + 1))

    monkeypatch.setattr(conversation, "receive", receive)
    client = Connection(ConnectionType.CLIENT)
    pieces = [client.send(TextMessage(data="k" * 2**16, message_finished=last)) for last in (False, False, True)]
    async with opened(conversation, max_message=2**20, bodies=bodies) as (open_socket, _):
        for piece in pieces:
            await open_socket.handle(RawData(piece))
        assert room == [False]
        assert bodies.take("other", 2**17)
        open_socket.leave()


@pytest.mark.parametrize(
    "event", [TextMessage(data="x", message_finished=False), Ping(), Pong()], ids=["fragments", "pings", "pongs"]
)
async def test_a_flood_of_frames_that_bring_nothing_closes(conversation: ClosingSoon, event: Event) -> None:
    client = Connection(ConnectionType.CLIENT)
    flood = b"".join(client.send(event) for _ in range(2000))
    async with opened(conversation, max_message=2**20) as (open_socket, stream):
        open_socket.nursery.start_soon(open_socket.handle, RawData(flood))
        received = b"".join([data async for data in stream])  # pongs too
    (close,) = frames(received)
    assert isinstance(close, CloseConnection)
    assert close.code == 1008


async def test_large_fragments_are_no_flood(conversation: ClosingSoon) -> None:
    client = Connection(ConnectionType.CLIENT)
    async with opened(conversation, max_message=2**22, bodies=BodyBudget(2**23)) as (open_socket, _):
        for _ in range(2000):
            await open_socket.handle(RawData(client.send(TextMessage(data="x" * 2000, message_finished=False))))
        await open_socket.handle(RawData(client.send(TextMessage(data="."))))
        open_socket.leave()
    assert len(conversation.heard[0]) == 4_000_001


async def test_a_client_that_answers_no_ping_is_closed_and_one_that_speaks_is_not(conversation: ClosingSoon) -> None:
    async with opened(conversation) as (open_socket, stream):
        for _ in range(10):
            await open_socket.handle(RawData(Connection(ConnectionType.CLIENT).send(Pong())))
            open_socket.ping()
        assert conversation.heard == []
        for _ in range(UNANSWERED_PINGS + 1):
            open_socket.ping()
        assert conversation.heard == ["the end"]
        assert [data async for data in stream]  # until it is closed


class WebSocketClient:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.protocol = WSConnection(ConnectionType.CLIENT)

    async def open(self, path: str) -> None:
        await self.stream.send_all(self.protocol.send(Request(host="x", target=path)))
        assert isinstance(await self.event(), AcceptConnection)

    async def event(self) -> Event:
        while True:
            for event in self.protocol.events():
                return event
            self.protocol.receive_data(await self.stream.receive_some() or None)

    async def send(self, event: Event) -> None:
        await self.stream.send_all(self.protocol.send(event))


async def test_a_websocket_echoes_answers_pings_and_never_compresses(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect()
    await stream.send_all(HANDSHAKE)
    with trio.fail_after(SOON):
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 101")
        assert b"extensions" not in answer.lower()

        client = WebSocketClient(await served.connect())
        await client.open("/echo")
        await client.send(TextMessage(data="héllo"))
        received = [await client.event(), await client.event()]  # the server's ping, at once, and the echo
        assert {type(event) for event in received} == {Ping, TextMessage}
        await client.send(Ping(payload=b"are you there"))
        assert await client.event() == Pong(payload=b"are you there")


async def test_an_endless_websocket_message_is_refused_and_not_collected(start_server: StartServer) -> None:
    served = await start_server()
    client = WebSocketClient(await served.connect())
    close: list[CloseConnection] = []

    async def listen() -> None:
        while not close:
            event = await client.event()
            if isinstance(event, CloseConnection):
                close.append(event)

    with trio.fail_after(SOON):
        await client.open("/echo")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            fragment = BytesMessage(data=b"x" * 2**16, message_finished=False)
            for _ in range(80):  # 5 MiB; the limit is 4
                if close:
                    break
                with suppress(trio.BrokenResourceError):
                    await client.send(fragment)
    assert close[0].code == 1009


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x88\x82\x00\x00\x00\x00\x00\x01", 1002),  # close with code 1
        (b"\x88\x81\x00\x00\x00\x00\x01", 1002),  # close with half a code
        (b"\xc1\x81\x00\x00\x00\x00a", 1002),  # compressed, which was never agreed
        (b"\x81\x81\x00\x00\x00\x00\xff", 1007),  # text that is not UTF-8
        (b"\x81\x05hello", 1002),  # not masked
    ],
)
async def test_a_malformed_frame_closes_with_its_code(
    start_server: StartServer, read_to_end: Callable[[trio.SocketStream], Awaitable[bytes]], frame: bytes, code: int
) -> None:
    served = await start_server()
    client = WebSocketClient(await served.connect())
    with trio.fail_after(SOON):
        await client.open("/echo")
        await client.stream.send_all(frame)
        event = await client.event()
        while isinstance(event, Ping):
            event = await client.event()
        assert isinstance(event, CloseConnection)
        assert event.code == code
        await read_to_end(client.stream)
