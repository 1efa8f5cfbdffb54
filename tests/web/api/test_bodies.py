"""Bodies that arrive at the same time have one bound, over both ways; small ones are never refused for large ones.

No API key takes all of it: it may hold as much as then stays free for the others.
"""

import json
from collections.abc import Callable

import pytest
import trio
import trio.testing

from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings
from triolet.web import body_budget, large_json

from .conftest import Web

SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
LARGEST = 256 * 1024
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\n"
)


def body(size: int) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x" * size}]}).encode()


def plain(content: bytes, key: bytes = b"a") -> bytes:
    return b"%bContent-Length: %d\r\n\r\n%b" % (HEAD % key, len(content), content)


def chunked(content: bytes, key: bytes = b"a") -> bytes:
    return b"%bTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (HEAD % key, len(content), content)


Framed = Callable[..., bytes]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ServeSettings:
    monkeypatch.setattr(body_budget, "LARGEST_BODIES", 1)
    monkeypatch.setattr(body_budget, "LEAST_BYTES", 2 * LARGEST)  # one large body of one key, and one of another
    return ServeSettings(
        engine=EngineSettings(model="tiny"),
        limits=LimitSettings(max_body_bytes=LARGEST, max_requests=8),
        api_keys=("a", "b"),
    )


async def answer_to(stream: trio.SocketStream) -> bytes:
    received = b""
    while b"}" not in received:
        data = await stream.receive_some()
        assert data, f"closed after {received!r}"
        received += data
    return received


@pytest.mark.parametrize("framed", [plain, chunked])
async def test_large_bodies_beyond_the_bound_are_refused_until_the_others_have_arrived(
    web: Web, framed: Framed
) -> None:
    large = framed(body(200 * 1024))
    with trio.fail_after(SOON):
        first, second, third = [await web.connect() for _ in range(3)]
        async with first, second, third:
            await first.send_all(large[:-9])
            await trio.testing.wait_all_tasks_blocked(0.05)
            await second.send_all(large[:-9])
            refused = await answer_to(second)
            assert refused.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
            assert b"server_overloaded" in refused
            assert b"retry-after: 1\r\n" in refused.lower()
            await third.send_all(framed(body(100)))
            assert (await answer_to(third)).startswith(b"HTTP/1.1 200 OK\r\n")
            await first.send_all(large[-9:])
            assert (await answer_to(first)).startswith(b"HTTP/1.1 200 OK\r\n")
            for _ in range(3):
                await third.send_all(large)
                assert (await answer_to(third)).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("framed", [plain, chunked])
async def test_bodies_of_one_key_leave_room_for_those_of_another(web: Web, framed: Framed) -> None:
    large, others = framed(body(200 * 1024)), framed(body(200 * 1024), b"b")
    with trio.fail_after(SOON):
        first, second, other = [await web.connect() for _ in range(3)]
        async with first, second, other:
            await first.send_all(large[:-9])
            await trio.testing.wait_all_tasks_blocked(0.05)
            await second.send_all(large[:-9])
            assert b"server_overloaded" in await answer_to(second)
            await other.send_all(others)
            assert (await answer_to(other)).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("framed", [plain, chunked])
async def test_a_body_that_waits_to_be_decoded_still_counts(web: Web, framed: Framed) -> None:
    large = framed(body(200 * 1024))
    with trio.fail_after(SOON):
        first, second = await web.connect(), await web.connect()
        async with first, second:
            async with large_json._ONE_AT_A_TIME:
                await first.send_all(large)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await second.send_all(large)
                assert b"server_overloaded" in await answer_to(second)
            assert (await answer_to(first)).startswith(b"HTTP/1.1 200 OK\r\n")
