"""A server over TCP that errs in every way a server can: each way has its class, and none ends the run."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from msgspec import structs

from triolet.loadtest.client.client import HttpClient
from triolet.loadtest.client.dial import read_url
from triolet.loadtest.client.ending import Fault
from triolet.loadtest.serve.exchange import LoadExchange, LoadRequest
from triolet.loadtest.serve.openai_stream import OpenAiTransport
from triolet.loadtest.serve.record import Record
from triolet.loadtest.serve.runner import Runner
from triolet.loadtest.serve.settings import LoadSettings
from triolet.loadtest.serve.workload import Workload

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices":[{"delta":{"content":"word "},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _error(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


# What is sent to one request, and whether the connection is then reset, closed, or left as it is.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "ok": (HEAD + _chunk(PIECE * 3) + _chunk(FINISH + DONE) + LAST, "stay"),
    "ok without [DONE]": (HEAD + _chunk(PIECE + FINISH) + LAST, "stay"),
    "ok in odd pieces": (HEAD + b"".join(_chunk(bytes([byte])) for byte in PIECE + FINISH + DONE) + LAST, "stay"),
    "busy": (_error(b"429 Too Many", b'{"error":{"message":"queue full","code":"x"}}'), "stay"),
    "gone": (_error(b"503 Unavailable", b'{"error":"draining"}'), "stay"),
    "refused": (_error(b"400 Bad", b'{"object":"error","message":"ignore_eos is unknown"}'), "stay"),
    "broken": (_error(b"500 Oops", b"<html>oops</html>"), "stay"),
    "error event": (HEAD + _chunk(PIECE + b'data: {"error":{"message":"worker died"}}\n\n') + LAST, "stay"),
    "unterminated": (HEAD + _chunk(PIECE) + LAST, "stay"),
    "reset": (HEAD + _chunk(PIECE), "reset"),
    "closed": (HEAD + _chunk(PIECE), "close"),
    "no chunks": (HEAD + b"what?\r\n", "close"),
    "no JSON": (HEAD + _chunk(b"data: {nonsense\n\n") + LAST, "stay"),
    "no stream": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "stay"),
    "stall": (HEAD + _chunk(PIECE), "hang"),
    "silence": (b"", "hang"),
}
CLASSES = {
    "ok": ("ok", ""),
    "ok without [DONE]": ("ok", ""),
    "ok in odd pieces": ("ok", ""),
    "busy": ("refused", "queue full"),
    "gone": ("refused", "draining"),
    "refused": ("client_error", "ignore_eos is unknown"),
    "broken": ("server_error", "<html>oops</html>"),
    "error event": ("stream_error", "worker died"),
    "unterminated": ("unterminated", "the stream ended without finish_reason or [DONE]"),
    "reset": ("reset", "within the answer: [Errno 104] Connection reset by peer"),
    "closed": ("reset", "the connection was closed within the answer"),
    "no chunks": ("malformed", "no chunk size: b'what?'"),
    "no JSON": ("malformed", "an event: "),
    "no stream": ("malformed", "the answer is application/json, not text/event-stream"),
    "stall": ("stalled", "given up after "),
    "silence": ("timeout", "given up after "),
}


async def _serve(answers: list[str], stream: trio.SocketStream) -> None:
    """Each request takes the next answer of the list."""
    async with stream:
        found = b""
        async for data in stream:
            found += data
            if not found.endswith(b"}"):  # the end of every body that is sent here
                continue
            found = b""
            answer, then = ANSWERS[answers.pop(0)]
            await stream.send_all(answer)
            if then == "hang":
                await trio.sleep_forever()
            if then == "reset":
                # Closing with a linger of no time sends a reset.
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if then != "stay":
                return


Start = Callable[[list[str]], Awaitable[OpenAiTransport]]


@pytest.fixture
def start(nursery: trio.Nursery) -> Start:
    async def listen(answers: list[str]) -> OpenAiTransport:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, partial(_serve, answers), listeners)
        port = listeners[0].socket.getsockname()[1]
        address = read_url(f"http://127.0.0.1:{port}")
        return OpenAiTransport(HttpClient(address), "chat")

    return listen


async def _records(transport: OpenAiTransport, count: int, **changes: object) -> list[Record]:
    settings = LoadSettings(
        url="http://127.0.0.1",
        concurrency=1,
        requests=count,
        warmup_seconds=0.0,
        stall_seconds=0.1,
        timeout_seconds=60.0,
    )
    settings = structs.replace(settings, **changes)
    runner = Runner(settings, Workload(settings), transport, model="m")
    with trio.fail_after(60):
        await runner.run()
    await transport.close()
    return runner.progress.records


@pytest.mark.parametrize("kind", [kind for kind in ANSWERS if kind != "silence"])
async def test_every_way_to_fail_has_its_class(start: Start, kind: str) -> None:
    """Each answer stands between two good ones: the client goes on after it."""
    transport = await start(["ok", kind, "ok"])
    records = await _records(transport, 3)
    outcome, detail = CLASSES[kind]
    assert [record.outcome for record in records] == ["ok", outcome, "ok"]
    assert records[1].detail.startswith(detail)
    assert len(records[0].arrivals) == 3


async def test_silence_is_a_timeout(start: Start) -> None:
    (record,) = await _records(await start(["silence"]), 1, timeout_seconds=0.1)
    assert (record.outcome, record.arrivals) == ("timeout", [])


async def test_what_was_not_told_is_counted_by_pieces(start: Start) -> None:
    (record,) = await _records(await start(["ok"]), 1)
    assert (record.output_tokens, record.output_tokens_told, record.prompt_tokens) == (3, False, None)
    assert record.intended <= record.started <= (record.sent or 0.0) <= (record.head or 0.0) <= record.arrivals[0]


async def test_nobody_listening_is_a_class_of_its_own() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else gets the port
        address = read_url(f"http://127.0.0.1:{taken.getsockname()[1]}")
        transport = OpenAiTransport(HttpClient(address), "chat")
        (record,) = await _records(transport, 1)
    assert record.outcome == "connect"


async def test_a_client_that_cancels_leaves_after_so_many_pieces(start: Start) -> None:
    transport = await start(["stall"])
    exchange = LoadExchange(trio.current_time(), trio.current_time())
    with pytest.raises(Fault) as raised, trio.fail_after(60):
        await transport.perform(LoadRequest(b"{}", cancel_after=1), exchange)
    assert (raised.value.outcome, len(exchange.arrivals)) == ("cancelled", 1)
