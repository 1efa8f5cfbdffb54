"""Plain requests straight on their connection: byte for byte what the other ways give, and no promise less."""

import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypercorn.config import Config
from trio.testing import wait_all_tasks_blocked

from triolet.protocol.messages import Cancel
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings
from triolet.web import arriving_body
from triolet.web.asgi import GenerationConnection
from triolet.web.transport.plain_head import HEADER_BYTES

from .conftest import Scripts, Web

SOON = 20.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "Hi"}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
MAX_BODY = 64 * 1024
CHANGING = re.compile(
    rb'(?<=cmpl-)[0-9a-f-]+|(?<="created":)\d+|(?<=date: )[^\r]+|"timeline":{[^}]*}|(?<="id":")[0-9a-f-]+'
)

CLOSE = re.compile(rb"\r\nconnection: close", re.IGNORECASE)
BY_ASGI = "TE: trailers\r\n"
BY_QUART = "Content-Type: application/json; charset=utf-8\r\n"


@pytest.fixture
def settings() -> ServeSettings:
    limits = LimitSettings(max_requests=8, max_body_bytes=MAX_BODY, outbox_tokens=8, max_socket_requests=3)
    return ServeSettings(engine=EngineSettings(model="tiny"), limits=limits, api_keys=("right",))


@pytest.fixture
def by_asgi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that came by way of ASGI."""
    seen: list[str] = []
    call = GenerationConnection.__call__

    async def spy(self: GenerationConnection, receive: Any, send: Any) -> None:  # Any: ASGI's own
        seen.append(self.scope["path"])
        await call(self, receive, send)

    monkeypatch.setattr(GenerationConnection, "__call__", spy)
    return seen


def head(body: bytes, fields: str = "", *, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    lines = f"Host: localhost\r\nX-Request-Id: mine\r\n{fields}Content-Length: {len(body)}\r\n"
    if "Authorization" not in fields:
        lines += "Authorization: Bearer right\r\n"
    if "Content-Type" not in fields:
        lines += "Content-Type: application/json\r\n"
    return f"POST {path} HTTP/{version}\r\n{lines}\r\n".encode()


def post(body: dict[str, Any] | bytes, fields: str = "", **more: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(data, fields, **more) + data


@asynccontextmanager
async def connected(web: Web) -> AsyncGenerator[trio.SocketStream]:
    with trio.fail_after(SOON):
        async with await web.connect() as stream:
            yield stream


async def answers(stream: trio.SocketStream, count: int = 1) -> list[tuple[bytes, bytes]]:
    """So many answers from a connection, each its head and its body, unchunked. Nothing may be left over."""
    data, found = b"", list[tuple[bytes, bytes]]()
    while True:
        while (one := _first(data)) is not None:
            said, body, data = one
            found.append((said, body))
        if len(found) >= count:
            assert (len(found), data) == (count, b"")
            return found
        more = await stream.receive_some()
        assert more, f"closed after {data!r}"
        data += more


def _first(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    said, blank, rest = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    if length := re.search(rb"content-length: (\d+)", said):
        size = int(length[1])
        return (said, rest[:size], rest[size:]) if len(rest) >= size else None
    body = b""
    while (end := rest.find(b"\r\n")) >= 0:
        size = int(rest[:end], 16)
        piece, rest = rest[end + 2 : end + 2 + size], rest[end + 2 + size :]
        if len(piece) < size or len(rest) < 2:
            return None
        assert rest[:2] == b"\r\n"
        body, rest = body + piece, rest[2:]
        if not size:
            return said, body, rest
    return None


async def at_end(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


CASES: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "chat": (CHAT, ""),
    "streamed": (CHAT | STREAM | {"n": 2}, ""),
    "completion": (TEXT | {"logprobs": 1}, ""),
    "streamed completion": (TEXT | STREAM, ""),
    "explained": (CHAT, "X-Triolet-Explain: 1\r\n"),
    "no JSON": (b"{", ""),
    "no body": (b"", ""),
    "unknown parameter": (CHAT | {"temprature": 1}, ""),
    "wrong key": (CHAT, "Authorization: Bearer wrong\r\n"),
    "bad header": (CHAT, "X-Triolet-Explain: 2\r\n"),
}


@pytest.mark.parametrize("other", [BY_ASGI, BY_QUART])
@pytest.mark.parametrize("case", CASES)
async def test_every_way_gives_the_same_bytes(web: Web, by_asgi: list[str], case: str, other: str) -> None:
    body, fields = CASES[case]
    path = "/v1/completions" if body in (TEXT | {"logprobs": 1}, TEXT | STREAM) else "/v1/chat/completions"

    async def ask(fields: str) -> list[bytes]:
        async with connected(web) as stream:
            await stream.send_all(post(body, fields, path=path) * 2)
            return [CHANGING.sub(b"", part) for answer in await answers(stream, 2) for part in answer]

    plain = await ask(fields)
    assert by_asgi == []
    assert plain == await ask(fields + other)
    assert by_asgi == [path] * 2
    assert b"x-request-id: mine\r\n" in plain[0]


@pytest.mark.parametrize("other", [BY_ASGI, BY_QUART])
@pytest.mark.parametrize("more", [{}, STREAM])
async def test_an_answer_that_is_there_at_once_is_the_same_too(web: Web, other: str, more: dict[str, Any]) -> None:
    async def at_once(engine: Any, request: Any) -> None:
        engine.gateway.started(request.id, 4)
        engine.token(request, "Hello")
        engine.finish_choice(request)
        engine.gateway.complete(request.id, "stop")

    web.engine.script = at_once
    said: list[Any] = []
    for fields in ("", other):
        async with connected(web) as stream:
            await stream.send_all(post(CHAT | more, fields))
            said.append([CHANGING.sub(b"", part) for part in (await answers(stream))[0]])
    assert said[0] == said[1]
    assert b"Hello" in said[0][1]


@pytest.mark.parametrize("script", ["refuse", "break_down"])
@pytest.mark.parametrize("more", [{}, STREAM])
async def test_an_engine_that_fails_is_told_in_the_same_bytes(
    web: Web, scripts: Scripts, script: str, more: dict[str, Any]
) -> None:
    web.engine.script = getattr(scripts, script)
    said: list[Any] = []
    for fields in ("", BY_ASGI):
        async with connected(web) as stream:
            await stream.send_all(post(CHAT | more, fields))
            said.append([CHANGING.sub(b"", part) for part in (await answers(stream))[0]])
    assert said[0] == said[1]
    assert b"error" in said[0][1]
    assert b"[DONE]" not in said[0][1]


async def test_pipelined_requests_are_answered_in_order_whatever_their_way(web: Web, by_asgi: list[str]) -> None:
    requests = [
        post(CHAT | STREAM),
        post(TEXT, path="/v1/completions"),
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        post(CHAT),
        post(CHAT, BY_ASGI),
        post(b"{"),
        post(CHAT | STREAM),
    ]
    async with connected(web) as stream:
        await stream.send_all(b"".join(requests))
        found = await answers(stream, len(requests))
    marks = [
        b"[DONE]",
        b"text_completion",
        b"{",
        b'"chat.completion"',
        b'"chat.completion"',
        b"invalid_json",
        b"[DONE]",
    ]
    for mark, (_, body) in zip(marks, found, strict=True):
        assert mark in body
    assert len(by_asgi) == 5  # what is read with an odd request follows it


@pytest.mark.parametrize("more", [{}, STREAM])
async def test_a_last_request_is_answered_and_followed_by_the_end(web: Web, more: dict[str, Any]) -> None:
    async with connected(web) as stream:
        await stream.send_all(post(CHAT | more) + post(CHAT | more, "Connection: close\r\n"))
        first, last = await answers(stream, 2)
        assert await at_end(stream)
    assert b"Connection: close" not in first[0]
    assert b"Connection: close" in last[0]
    assert CHANGING.sub(b"", first[1]) == CHANGING.sub(b"", last[1])


async def test_an_old_client_is_served_as_before(web: Web) -> None:
    received = b""
    async with connected(web) as stream:
        await stream.send_all(post(CHAT | STREAM, version="1.0"))
        async for data in stream:
            received += data
    assert b"chunked" not in received
    assert received.endswith(b"data: [DONE]\n\n")


async def test_the_last_request_of_a_connection_says_so(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "keep_alive_max_requests", 3)
    async with connected(web) as stream:
        await stream.send_all(post(CHAT) * 3)
        heads = [said.lower() for said, _ in await answers(stream, 3)]
        assert await at_end(stream)
    assert [b"connection: close" in said for said in heads] == [False, False, True]


async def test_a_body_may_come_in_pieces(web: Web, by_asgi: list[str]) -> None:
    whole = post(CHAT)
    cut = whole.index(b"\r\n\r\n") + 4
    async with connected(web) as stream:
        for piece in (whole[:cut], whole[cut : cut + 1], whole[cut + 1 : -1]):
            await stream.send_all(piece)
            await wait_all_tasks_blocked()
        assert web.engine.requests == []
        await stream.send_all(whole[-1:] + whole[:-1])
        assert len(await answers(stream)) == 1
        await stream.send_all(whole[-1:])
        assert len(await answers(stream)) == 1
    assert by_asgi == []


async def test_a_head_that_comes_in_pieces_is_left_to_the_ordinary_way(web: Web, by_asgi: list[str]) -> None:
    async with connected(web) as stream:
        await stream.send_all(post(CHAT)[:30])
        await wait_all_tasks_blocked()
        await stream.send_all(post(CHAT)[30:] + post(CHAT))
        assert len(await answers(stream, 2)) == 2
    assert by_asgi == ["/v1/chat/completions"] * 2  # the second was read with the rest of the first


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_body, "BODY_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_does_not_come_is_not_waited_for(impatient: bool, web: Web) -> None:
    said: list[Any] = []
    for fields in ("", BY_ASGI):
        async with connected(web) as stream:
            await stream.send_all(post(CHAT, fields)[:-1])
            said.append([CHANGING.sub(b"", part) for part in (await answers(stream))[0]])
            assert await at_end(stream)
    assert all(CLOSE.search(answer[0]) for answer in said)
    assert [CLOSE.sub(b"", part) for part in said[0]] == [CLOSE.sub(b"", part) for part in said[1]]
    assert said[0][0].startswith(b"HTTP/1.1 408")


async def test_a_body_that_is_too_large_is_not_waited_for(web: Web) -> None:
    async with connected(web) as stream:
        await stream.send_all(head(bytes(MAX_BODY + 1)))
        [(said, body)] = await answers(stream)
        assert await at_end(stream)
    assert said.startswith(b"HTTP/1.1 413")
    assert b"content_too_large" in body


async def test_a_refusal_does_not_wait_for_the_body(web: Web) -> None:
    said: list[Any] = []
    for fields in ("", BY_ASGI):
        async with connected(web) as stream:
            await stream.send_all(head(bytes(1000), fields + "Authorization: Bearer wrong\r\n"))
            said.append([CHANGING.sub(b"", part) for part in (await answers(stream))[0]])
            assert await at_end(stream)
    assert all(CLOSE.search(answer[0]) for answer in said)
    assert [CLOSE.sub(b"", part) for part in said[0]] == [CLOSE.sub(b"", part) for part in said[1]]
    assert said[0][0].startswith(b"HTTP/1.1 401")


async def test_a_head_above_the_limit_is_refused_whether_it_is_all_there_or_not(web: Web) -> None:
    large = f"X-Large: {'x' * HEADER_BYTES}\r\n"
    said: list[Any] = []
    for data in (post(CHAT, large), post(CHAT, large + BY_ASGI), post(CHAT, large).partition(b"\r\n\r\n")[0]):
        async with connected(web) as stream:
            await stream.send_all(data)
            said.append([CHANGING.sub(b"", part) for part in (await answers(stream))[0]])
            assert await at_end(stream)
    assert said[0] == said[1] == said[2]
    assert said[0][0].startswith(b"HTTP/1.1 431")
    assert web.engine.requests == []


async def test_leaving_in_the_middle_of_a_body_starts_nothing(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "triolet.http")
    async with connected(web) as stream:
        await stream.send_all(post(CHAT)[:-5])
        await wait_all_tasks_blocked()
    async with connected(web) as stream:  # the server goes on
        await stream.send_all(post(CHAT))
        await answers(stream)
    assert len(web.engine.requests) == 1
    assert caplog.records == []


async def test_pipelined_bytes_do_not_hide_that_a_client_has_left(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.flow
    async with connected(web) as stream:
        await stream.send_all(post(CHAT | STREAM) + b"G")
        await web.engine.wait_for_requests(1)
        await wait_all_tasks_blocked()
    with trio.fail_after(SOON):
        await web.engine.gateway.wait_idle()
    cancelled = [message for message in web.engine.to_scheduler() if isinstance(message, Cancel)]
    assert [(cancel.id, cancel.reason) for cancel in cancelled] == [(web.engine.requests[0].id, "cancelled")]


async def test_a_stream_that_starts_says_so_though_its_first_text_takes_long(web: Web) -> None:
    async def think(engine: Any, request: Any) -> None:
        await trio.lowlevel.checkpoint()
        engine.gateway.started(request.id)
        engine.gateway.flush()

    web.engine.script = think
    received = b""
    async with connected(web) as stream:
        await stream.send_all(post(CHAT | STREAM))
        while b'"role":"assistant"' not in received:
            received += await stream.receive_some()
    assert received.startswith(b"HTTP/1.1 200")


async def test_a_draining_server_ends_what_is_under_way_and_closes(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.flow
    async with connected(web) as stream, connected(web) as idle:
        await stream.send_all(post(CHAT | STREAM))
        received = b""
        while b"Hel" not in received:
            received += await stream.receive_some()
        web.stop.set()
        assert await at_end(idle)
        web.engine.gateway.complete(web.engine.requests[0].id, "stop")
        async for data in stream:
            received += data
    assert received.endswith(END)


async def test_an_answer_of_a_draining_server_says_that_it_closes(web: Web, scripts: Scripts) -> None:
    web.engine.script = scripts.flow
    async with connected(web) as stream, connected(web) as idle:
        await stream.send_all(post(CHAT))
        await web.engine.wait_for_requests(1)
        web.stop.set()
        assert await at_end(idle)
        web.engine.gateway.complete(web.engine.requests[0].id, "stop")
        [(said, _)] = await answers(stream)
        assert await at_end(stream)
    assert CLOSE.search(said)


async def test_a_handler_that_breaks_is_an_error_of_one_request(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr(web.engine.gateway, "new_id", broken)
    async with connected(web) as stream:
        await stream.send_all(post(CHAT) + b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        (said, body), (alive, _) = await answers(stream, 2)
    assert said.startswith(b"HTTP/1.1 500")
    assert b"internal_error" in body
    assert b"planted" not in body
    assert alive.startswith(b"HTTP/1.1 200")
