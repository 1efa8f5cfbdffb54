"""A client that does not read costs what the kernel's buffers hold and one outbox; the engine is told to wait."""

import json

import trio
import trio.testing
from trio_websocket import wrap_client_stream

from .conftest import Web, flood

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
PIECE = "x" * 65536
PIECES = 1000  # 64 MiB in all, far beyond what the kernel takes for one connection
TAKEN = 400  # of them at most: loopback buffers grow to a few MiB in each direction


async def wait_stalled() -> None:
    """Until nobody has anything to do but the server's own polls, which are further apart than the cushion."""
    with trio.fail_after(30):
        await trio.testing.wait_all_tasks_blocked(0.02)


async def test_of_a_stream(web: Web) -> None:
    web.engine.script = flood(PIECES, PIECE)
    body = json.dumps(CHAT | {"stream": True}).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", int(web.url.rsplit(":")[-1]))
    await stream.send_all(f"{HEAD}{len(body)}\r\n\r\n".encode() + body)
    await web.engine.wait_for_requests(1)
    await wait_stalled()
    assert 0 < web.engine.delivered < TAKEN
    await stream.aclose()
    await web.engine.gateway.wait_idle()


async def test_the_end_of_an_unread_stream(web: Web, mock_clock: trio.testing.MockClock) -> None:
    """At the write deadline its request ends, and its end is sent where the client reads again. Else it is cut."""
    body = json.dumps(CHAT | {"stream": True}).encode()
    for number, reads_again in enumerate((True, False), 1):
        web.engine.script = flood(PIECES, PIECE)
        stream = await web.connect()
        await stream.send_all(f"{HEAD}{len(body)}\r\n\r\n".encode() + body)
        await web.engine.wait_for_requests(number)
        await wait_stalled()
        mock_clock.jump(29.9)
        await wait_stalled()
        assert web.engine.gateway.live_requests == 1
        mock_clock.jump(0.2)
        await web.engine.gateway.wait_idle()
        assert web.engine.gateway.accounts.finished == {"stalled": number}
        if not reads_again:
            await wait_stalled()
            mock_clock.jump(1.1)
            await wait_stalled()
        received = b""
        with trio.fail_after(30):
            while not received.endswith(b"0\r\n\r\n") and (data := await stream.receive_some(1 << 20)):
                received = received[-10_000:] + data
        assert received.count(b"[DONE]") == received.count(b'"triolet_finish_reason":"stalled"') == reads_again
        await stream.aclose()


async def test_of_a_socket(web: Web) -> None:
    web.engine.script = flood(PIECES, PIECE)
    host = web.url.removeprefix("http://")
    port = int(host.split(":")[1])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:
        # A queue of one message: the client's reader stops after that.
        socket = await wrap_client_stream(nursery, stream, host, "/v1/stream", message_queue_size=1)
        await socket.send_message(json.dumps({"type": "create", "id": "a", "request": CHAT}))
        await web.engine.wait_for_requests(1)
        await wait_stalled()
        assert 0 < web.engine.delivered < TAKEN
        # The server still hears a client that it cannot speak to.
        await socket.send_message(json.dumps({"type": "cancel", "id": "a"}))
        await web.engine.gateway.wait_idle()
        nursery.cancel_scope.cancel()
