"""Connections end when they should: at EOF, after the keep-alive time, at shutdown, and when their client goes away."""

import logging
import socket
import struct

import h11
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.web.timers import Deadlines
from triolet.web.transport import http1 as guard_http1
from triolet.web.transport import transport as server

from ..conftest import ReadToEnd, Served, StartServer

SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run


def get(path: str, connection: str = "keep-alive") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n".encode()


async def receive_until(stream: trio.SocketStream, end: bytes) -> bytes:
    received = b""
    while end not in received:
        data = await stream.receive_some()
        assert data, f"closed before {end!r}: {received!r}"
        received += data
    return received


async def at_end(stream: trio.SocketStream) -> bool:
    """Whether the server has closed; waits until it does or says something."""
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


@pytest.mark.parametrize("request_bytes", [get("/", "close"), b"GET / HTTP/1.0\r\nHost: x\r\n\r\n"])
async def test_an_answer_that_closes_is_followed_by_eof(start_server: StartServer, request_bytes: bytes) -> None:
    served = await start_server()
    stream = await served.connect()
    await stream.send_all(request_bytes)
    with trio.fail_after(SOON):
        assert (await receive_until(stream, b"hello")).startswith(b"HTTP/1.1 200")
        assert await at_end(stream)


async def test_an_answer_before_the_body_announces_the_end(start_server: StartServer) -> None:
    """A client that keeps the connection would send its next request into the void."""
    served = await start_server()
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    with trio.fail_after(SOON):
        for request, last in ((head + b"hello", False), (head, True)):
            stream = await served.connect()
            await stream.send_all(request)
            answer = await receive_until(stream, b"}")
            assert answer.startswith(b"HTTP/1.1 404")
            assert (b"\r\nconnection: close\r\n" in answer.lower()) is last
            if last:
                assert await at_end(stream)
            else:
                await stream.send_all(get("/"))
                await receive_until(stream, b"hello")


async def test_an_answer_while_the_server_stops_announces_the_end(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await wait_all_tasks_blocked(0.05)
        served.stop.set()
        await wait_all_tasks_blocked(0.05)
        await stream.send_all(b"hello")
        assert b"\r\nconnection: close\r\n" in (await receive_until(stream, b"\r\n5")).lower()
        assert await at_end(stream)


async def test_a_kept_alive_connection_serves_again_and_ends_when_idle(start_server: StartServer) -> None:
    served = await start_server(keep_alive_timeout=0.3)
    stream = await served.connect()
    with trio.fail_after(SOON):
        for _ in range(3):
            await stream.send_all(get("/"))
            await receive_until(stream, b"hello")
        assert await at_end(stream)


async def test_a_client_that_says_nothing_is_closed(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    served = await start_server()
    with trio.fail_after(SOON):
        assert await at_end(await served.connect())


@pytest.mark.parametrize("before", [b"", get("/")])
async def test_a_head_that_comes_too_slowly_is_answered_408(
    start_server: StartServer, read_to_end: ReadToEnd, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    served = await start_server(keep_alive_timeout=3600.0)
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(before + b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        answers = await read_to_end(stream)
    assert answers.count(b"HTTP/1.1 200 OK") == bool(before)
    assert b"HTTP/1.1 408 Request Timeout\r\n" in answers
    assert b"request_timeout" in answers


async def test_a_slow_body_has_another_time_than_the_head(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Deadlines] = []  # of the heads, then of idle connections

    def recorded(seconds: float) -> Deadlines:
        made.append(Deadlines(seconds))
        return made[-1]

    monkeypatch.setattr(server, "Deadlines", recorded)
    served = await start_server(keep_alive_timeout=3600.0)
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await wait_all_tasks_blocked(0.05)
        assert not made[0].call_first(None)
        await stream.send_all(b"hello")
        await receive_until(stream, b"5")


async def test_a_disconnect_ends_a_silent_stream(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect()
    await stream.send_all(get("/quiet"))
    with trio.fail_after(SOON):
        await receive_until(stream, b"first")
        await stream.aclose()
        await served.ended.wait()


async def test_a_reset_ends_a_flood_without_an_error_in_the_log(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "triolet.http")
    served = await start_server()
    stream = await served.connect()
    await stream.send_all(get("/flood"))
    with trio.fail_after(SOON):
        await stream.receive_some()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await served.ended.wait()
        assert (await served.get("/")).endswith(b"hello")
    assert caplog.records == []


@pytest.mark.parametrize("pipelined", [b"G", get("/") * 1000])
async def test_pipelined_bytes_do_not_hide_a_disconnect(start_server: StartServer, pipelined: bytes) -> None:
    served = await start_server()
    stream = await served.connect()
    await stream.send_all(get("/quiet") + pipelined)
    with trio.fail_after(SOON):
        await receive_until(stream, b"first")
        await stream.aclose()
        await served.ended.wait()


async def test_pipelined_requests_are_answered_in_order(start_server: StartServer) -> None:
    served = await start_server()
    served.gate.set()
    stream = await served.connect()
    await stream.send_all(get("/canary") + get("/") + get("/", "close"))
    with trio.fail_after(SOON):
        received = b""
        async for data in stream:
            received += data
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.index(b"line 19") < received.index(b"hello")


async def test_unread_websocket_messages_do_not_hide_a_disconnect(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect()
    upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    await stream.send_all(f"GET /deaf HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n{upgrade}\r\n\r\n".encode())
    with trio.fail_after(SOON):
        await receive_until(stream, b"\r\n\r\n")
        await stream.send_all(b"\x81\x81\x00\x00\x00\x00a" * 100)
        await served.begun.wait()
        await wait_all_tasks_blocked()
        await stream.aclose()
        await served.ended.wait()


async def test_a_client_that_stops_reading_is_closed_at_the_send_deadline(start_server: StartServer) -> None:
    served = await start_server(send_timeout=0.2)
    stream = await served.connect(receive_buffer=4096)
    await stream.send_all(get("/flood"))
    with trio.fail_after(SOON):
        await served.ended.wait()
        assert (await served.get("/")).endswith(b"hello")


async def test_a_slow_reader_gets_every_byte_in_order(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect(receive_buffer=4096)
    await stream.send_all(b"GET /numbers HTTP/1.0\r\nHost: x\r\n\r\n")
    received = b""
    with trio.fail_after(SOON):
        async for data in stream:
            received += data
            await trio.lowlevel.checkpoint()
    expected = b"".join(b"%06d," % number * 300 for number in range(1000))
    assert received.partition(b"\r\n\r\n")[2] == expected


async def test_shutdown_does_not_wait_for_a_client_that_stops_reading(start_server: StartServer) -> None:
    served = await start_server(send_timeout=3600.0, drain_timeout=0.1)
    stream = await served.connect(receive_buffer=4096)
    await stream.send_all(get("/flood"))
    with trio.fail_after(SOON):
        await served.begun.wait()
        await wait_all_tasks_blocked()
        assert not served.ended.is_set()
        served.stop.set()
        await served.stopped.wait()
    assert served.ended.is_set()


async def test_shutdown_lets_a_stream_finish_and_takes_no_new_connection(start_server: StartServer) -> None:
    served = await start_server(drain_timeout=3600.0)
    idle, busy = await served.connect(), await served.connect()
    await busy.send_all(get("/canary"))
    with trio.fail_after(SOON):
        await receive_until(busy, b"line 9")
        served.stop.set()
        assert await at_end(idle)
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        served.gate.set()
        rest = b""
        async for data in busy:
            rest += data
        assert rest.endswith(b"data: line 19\n\n\r\n0\r\n\r\n")
        await served.stopped.wait()


async def test_when_others_listen_each_open_connection_may_ask_once_more(start_server: StartServer) -> None:
    served = await start_server(drain_timeout=0.0)
    closed, lingered, idle = trio.Event(), trio.Event(), trio.Event()

    async def on_closed() -> None:
        closed.set()

    served.departure = server.Departure(0.5, 3600.0, on_closed, lingered.set, idle.wait)
    new, kept, silent, busy = [await served.connect() for _ in range(4)]
    await busy.send_all(get("/canary"))
    with trio.fail_after(SOON):
        await receive_until(busy, b"line 9")
        await kept.send_all(get("/"))
        await receive_until(kept, b"hello")
        served.stop.set()
        await closed.wait()
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        for stream in (new, kept):
            await stream.send_all(get("/"))
            assert b"\r\nconnection: close\r\n" in (await receive_until(stream, b"hello")).lower()
            assert await at_end(stream)
        assert not lingered.is_set()
        assert await at_end(silent)
        assert lingered.is_set()
        served.gate.set()
        assert (await receive_until(busy, b"\r\n0\r\n\r\n")).endswith(b"data: line 19\n\n\r\n0\r\n\r\n")
        assert await at_end(busy)
        await wait_all_tasks_blocked()
        assert not served.stopped.is_set()  # a request without a connection still runs
        idle.set()
        await served.stopped.wait()


async def test_what_the_drain_timeout_ends_may_say_so(start_server: StartServer) -> None:
    served: Served = await start_server(drain_timeout=0.0, on_drain_timeout=lambda: served.gate.set())
    stream, idle = await served.connect(), await served.connect()
    await stream.send_all(get("/canary"))
    with trio.fail_after(SOON):
        await receive_until(stream, b"line 9")
        served.stop.set()
        assert await at_end(idle)
        assert (await receive_until(stream, b"\r\n0\r\n\r\n")).endswith(b"data: line 19\n\n\r\n0\r\n\r\n")
        assert await at_end(stream)
        await served.stopped.wait()


async def test_the_drain_timeout_is_not_announced_when_all_has_ended(start_server: StartServer) -> None:
    announced: list[bool] = []
    served = await start_server(drain_timeout=3600.0, on_drain_timeout=lambda: announced.append(True))
    await served.connect()
    with trio.fail_after(SOON):
        await served.get("/")
        served.stop.set()
        await served.stopped.wait()
    assert announced == []


async def test_an_error_in_one_connection_stays_there(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = guard_http1.GuardedHTTP1._check_protocol

    async def broken(self: guard_http1.GuardedHTTP1, event: h11.Request) -> None:
        if event.target == b"/broken":
            raise RuntimeError("planted\nfault")
        await sound(self, event)

    monkeypatch.setattr(guard_http1.GuardedHTTP1, "_check_protocol", broken)
    served = await start_server()
    beside = await served.connect()
    await beside.send_all(get("/quiet"))
    with trio.fail_after(SOON):
        await receive_until(beside, b"first")
        assert await served.get("/broken") == b""
        assert (await served.get("/")).endswith(b"hello")
    assert not served.ended.is_set()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "connection closed after an error: RuntimeError: planted fault"
    ]
    await beside.aclose()


async def test_an_upload_over_the_limit_gets_its_answer_and_not_a_reset(start_server: StartServer) -> None:
    served = await start_server()
    stream = await served.connect()
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n"
    with trio.fail_after(SOON):
        await stream.send_all(head)
        for _ in range(20):
            await stream.send_all(b"x" * 100_000)
        answer = await receive_until(stream, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    await stream.aclose()
