"""Whoever holds connections open locks nobody out."""

import resource
from collections.abc import Awaitable, Callable
from functools import partial

import h2.events
import hyperframe.frame
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.web.timers import Deadlines
from triolet.web.transport.capacity import MAX_FILES, RESERVED_FILES, ConnectionPlaces, origin_of, raise_file_limit

from ..conftest import ReadToEnd, StartServer
from .test_hostile import HTTP2Client, websocket_request

SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
Hold = Callable[[trio.SocketStream], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def silent(stream: trio.SocketStream) -> None:
    pass


async def half_a_head(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\n")


async def answered(stream: trio.SocketStream) -> None:
    await stream.send_all(GET)
    await read_until(stream, b"hello")


async def preface(stream: trio.SocketStream) -> None:
    client = HTTP2Client(stream)
    await client.flush()
    await client.wait_for(h2.events.SettingsAcknowledged)
    await wait_all_tasks_blocked()  # the server counts it as idle after it has answered


async def read_until(stream: trio.SocketStream, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        more = await stream.receive_some()
        assert more, f"closed after {data!r}"
        data += more


# How a connection is held, what is sent then, and the end of its answer.
HELD: list[tuple[Hold, bytes, bytes]] = [
    (silent, GET, b"hello"),
    (half_a_head, b"Host: x\r\n\r\n", b"hello"),
    (answered, GET, b"hello"),
    (preface, hyperframe.frame.PingFrame(0, b"are you?").serialize(), b"are you?"),
]


@pytest.mark.parametrize(("hold", "then", "end"), HELD)
async def test_a_new_connection_displaces_the_one_without_a_request_for_longest(
    start_server: StartServer,
    read_to_end: ReadToEnd,
    monkeypatch: pytest.MonkeyPatch,
    hold: Hold,
    then: bytes,
    end: bytes,
) -> None:
    monkeypatch.setattr(ConnectionPlaces, "share", 2.0)  # all are from this address
    served = await start_server(max_connections=4, keep_alive_timeout=3600.0)
    with trio.fail_after(SOON):
        held = [await served.connect() for _ in range(4)]
        for stream in held:
            await hold(stream)
        assert (await served.get("/")).endswith(b"hello")
        await read_to_end(held[0])  # at its end
        await held[3].send_all(then)
        await read_until(held[3], end)


async def test_when_all_are_busy_a_new_one_is_closed_and_the_log_says_so(
    start_server: StartServer, read_to_end: ReadToEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ConnectionPlaces, "share", 2.0)
    served = await start_server(max_connections=2)
    with trio.fail_after(SOON):
        busy = [await served.connect() for _ in range(2)]
        for stream in busy:
            await stream.send_all(websocket_request("/echo"))
            await stream.receive_some()
        for _ in range(3):
            assert await read_to_end(await served.connect()) == b""
        assert len([record for record in caplog.records if "places are taken" in record.message]) == 1
        await busy[0].aclose()
        while not (await served.get("/")).endswith(b"hello"):  # until its end was noticed
            await trio.lowlevel.checkpoint()


async def test_one_address_gets_half_of_all(start_server: StartServer, read_to_end: ReadToEnd) -> None:
    served = await start_server(max_connections=4)
    with trio.fail_after(SOON):
        for _ in range(2):
            stream = await served.connect()
            await stream.send_all(websocket_request("/echo"))
            await stream.receive_some()
        assert await read_to_end(await served.connect()) == b""


async def test_an_address_with_half_of_all_displaces_its_own(start_server: StartServer, read_to_end: ReadToEnd) -> None:
    served = await start_server(max_connections=6, keep_alive_timeout=3600.0)
    with trio.fail_after(SOON):
        busy = await served.connect()
        await busy.send_all(websocket_request("/echo"))
        await busy.receive_some()
        idle = [await served.connect() for _ in range(2)]
        for stream in idle:
            await answered(stream)
        assert (await served.get("/")).endswith(b"hello")
        assert await read_to_end(idle[0]) == b""
        await answered(idle[1])


async def test_an_address_with_half_of_all_displaces_nobody_else() -> None:
    idle, ended = Deadlines(1.0), list[str]()
    for name, origin in (("first", "10.0.0.2"), ("second", "10.0.0.1"), ("third", "10.0.0.1")):
        idle.set(name, partial(ended.append, name), origin)
    assert [idle.call_first("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert ended == ["second", "third"]


async def test_a_place_of_another_address_is_left() -> None:
    places = ConnectionPlaces(4, lambda origin: False)
    assert [places.take("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert [places.take("10.0.0.2"), places.take(None), places.take(None)] == [True, True, False]
    places.leave("10.0.0.1")
    assert places.take("10.0.0.1")


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert origin_of("2001:db8:1:2:3:4:5:6") == origin_of("2001:db8:1:2::1") != origin_of("2001:db8:1:3::1")
    assert origin_of("fe80::1%lo") == origin_of("fe80::2")
    assert origin_of("10.0.0.1") != origin_of("10.0.0.2")


def test_the_limit_of_open_files_is_raised_and_kept_above_the_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        connections = raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert hard == before[1]
    assert soft == min(MAX_FILES, hard if hard != resource.RLIM_INFINITY else MAX_FILES)
    assert connections <= soft - min(RESERVED_FILES, soft // 2)
