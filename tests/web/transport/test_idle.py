"""A server with nothing to do has no timer running; thousands of sockets share the few of their pings."""

import math
from itertools import count

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping as PingEvent
from wsproto.events import TextMessage

from triolet.web.timers import Ping, Pings
from triolet.web.transport import transport as server
from triolet.web.transport.websocket import OpenSocket

from ..conftest import StartServer

SOON = 20.0
HANDSHAKE = (
    b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def next_deadline() -> float:
    await wait_all_tasks_blocked()
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def after_the_timers() -> float:
    """The next deadline once those of at most a second have passed: what set them must not set them again."""
    for _ in range(5):
        deadline = await next_deadline()
        if deadline > 1.0:
            return deadline
        await trio.sleep(deadline)
    return await next_deadline()


async def test_a_server_without_connections_sleeps(start_server: StartServer) -> None:
    served = await start_server(keep_alive_timeout=3600.0)
    assert await next_deadline() == math.inf
    await served.get("/")  # what looked for its hang-up has ended with it
    assert await after_the_timers() == math.inf


async def test_open_connections_wait_for_nothing_but_their_keep_alive_time(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 4000.0)
    served = await start_server(keep_alive_timeout=3600.0)
    for _ in range(5):
        await served.connect()
    assert await next_deadline() > 3600.0
    for _ in range(5):
        stream = await served.connect()
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.receive_some()
    assert 3000.0 < await after_the_timers() <= 3600.0


async def test_an_open_websocket_is_pinged_and_no_more(start_server: StartServer) -> None:
    """The twin of the two above: a timer is seen, and it is gone with the socket."""
    served = await start_server(keep_alive_timeout=3600.0)
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(HANDSHAKE)
        received = b""
        while not received.endswith(b"\x89\x00"):  # the first ping
            received += await stream.receive_some()
    assert 0 < await next_deadline() < 1.0
    await stream.aclose()
    assert await after_the_timers() == math.inf


async def test_a_ping_at_the_last_moment_of_a_connection_ends_nothing_else(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, pinged = Pings.leave, trio.Event()

    def ping_and_leave(self: Pings, ping: Ping) -> None:
        ping()
        leave(self, ping)
        pinged.set()

    served = await start_server()
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(HANDSHAKE)
        received = b""
        while not received.endswith(b"\x89\x00"):
            received += await stream.receive_some()
        monkeypatch.setattr(Pings, "leave", ping_and_leave)
        await stream.aclose()
        await pinged.wait()
        assert (await served.get("/")).endswith(b"hello")


async def test_every_socket_is_pinged_once_an_interval(autojump_clock: MockClock) -> None:
    pings, heard = Pings(20.0), dict.fromkeys(range(100), 0)
    calls = {number: lambda number=number: heard.update({number: heard[number] + 1}) for number in heard}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pings.run)
        await trio.sleep(7.5)
        for call in calls.values():
            pings.join(call)
        await trio.sleep(100.25)  # between two slots
        assert set(heard.values()) == {5}
        pings.leave(calls[0])
        await trio.sleep(20.0)
        assert heard[0] == 5
        assert {heard[number] for number in range(1, 100)} == {6}
        for call in calls.values():
            pings.leave(call)
        await trio.sleep(20.0)
        assert {heard[number] for number in range(1, 100)} == {6}
        nursery.cancel_scope.cancel()


async def test_pings_reach_a_client_that_reads_and_break_no_message_of_one_that_does_not(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WEBSOCKET_PING_SECONDS", 0.02)
    ping, rounds, three = OpenSocket.ping, count(1), trio.Event()

    def counted(self: OpenSocket) -> None:
        ping(self)
        if next(rounds) == 3:
            three.set()

    monkeypatch.setattr(OpenSocket, "ping", counted)
    served = await start_server()
    stream = await served.connect()
    protocol = Connection(ConnectionType.CLIENT)
    message, messages = "x" * 2**18, 40  # 10 MiB there and back: more than all the buffers between
    pings = echoed = 0
    turn = trio.Lock()

    async def send() -> None:
        for _ in range(messages):
            async with turn:
                await stream.send_all(protocol.send(TextMessage(data=message)))

    async def answer(ping: PingEvent) -> None:
        async with turn:
            await stream.send_all(protocol.send(ping.response()))

    with trio.fail_after(SOON):
        await stream.send_all(HANDSHAKE)
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        protocol.receive_data(head.partition(b"\r\n\r\n")[2])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await three.wait()  # while nobody reads
            while echoed < messages * len(message) or pings < 10:
                for event in protocol.events():
                    if isinstance(event, TextMessage):
                        echoed += len(event.data)
                    else:
                        assert isinstance(event, PingEvent)
                        pings += 1
                        nursery.start_soon(answer, event)
                if echoed < messages * len(message) or pings < 10:
                    protocol.receive_data(await stream.receive_some(2**18))
