"""The client against servers in memory, which say exactly the bytes that a test wants."""

import socket
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from triolet.loadtest.client import dial
from triolet.loadtest.client.chunk import refusal_text
from triolet.loadtest.client.client import MOST_PAGE, HttpClient
from triolet.loadtest.client.dial import Dialer, Endpoint, read_url
from triolet.loadtest.client.ending import Fault

from .made import Servers, read_head

ADDRESS = Endpoint(host="x", port=80, secure=False, path="/v1")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _answers(_number: int, stream: trio.abc.Stream) -> None:
    while await read_head(stream):
        await stream.send_all(OK)


async def _ask(client: HttpClient) -> tuple[bytes, bool]:
    async with client.request("POST", "/completions", b"{}", key="K") as (response, _sent, reused):
        return await response.read_all(), reused


async def test_a_connection_is_kept_and_used_again(nursery: trio.Nursery) -> None:
    servers = Servers(nursery, _answers)
    client = HttpClient(ADDRESS, servers.connect)
    assert await _ask(client) == (b"ok", False)
    assert await _ask(client) == (b"ok", True)
    assert len(servers.streams) == 1


def test_of_a_page_that_is_no_error_the_first_line_is_told() -> None:
    page = b"\n<!DOCTYPE html>\n<title>Not found</title>\n"
    assert refusal_text(page) == "<!DOCTYPE html>"
    assert refusal_text(b"x" * 999) == "x" * 200


async def test_a_request_says_what_it_must(nursery: trio.Nursery) -> None:
    heads: list[bytes] = []

    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        heads.append(await read_head(stream))
        await stream.send_all(OK)

    await _ask(HttpClient(ADDRESS, Servers(nursery, serve).connect))
    lines = heads[0].lower().split(b"\r\n")
    assert lines[0] == b"post /v1/completions http/1.1"
    assert {b"host: x", b"authorization: bearer k", b"content-type: application/json", b"content-length: 2"} <= set(
        lines
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
)
async def test_a_connection_that_cannot_be_kept_is_not(nursery: trio.Nursery, answer: bytes) -> None:
    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        await stream.send_all(answer)
        await stream.aclose()

    client = HttpClient(ADDRESS, Servers(nursery, serve).connect)
    assert [await _ask(client) for _ in range(2)] == [(b"ok", False), (b"ok", False)]


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(nursery: trio.Nursery) -> None:
    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        await stream.send_all(OK)
        await stream.aclose()

    servers = Servers(nursery, serve)
    client = HttpClient(ADDRESS, servers.connect)
    assert [await _ask(client) for _ in range(3)] == [(b"ok", False)] * 3
    assert len(servers.streams) == 3


async def test_leaving_before_the_end_closes_the_connection(nursery: trio.Nursery) -> None:
    closed = trio.Event()

    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        assert await read_head(stream) == b""
        closed.set()

    client = HttpClient(ADDRESS, Servers(nursery, serve).connect)
    async with client.request("POST", "/completions", b"{}") as (response, _sent, _reused):
        assert await response.read() == b"ok"
    with trio.fail_after(10):
        await closed.wait()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"", "reset"),
        (b"HTTP/1.1 200", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "reset"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "reset"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nok\r\n", "malformed"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "malformed"),
    ],
)
async def test_a_broken_answer_has_its_class(nursery: trio.Nursery, answer: bytes, outcome: str) -> None:
    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        if answer:
            await stream.send_all(answer)
        await stream.aclose()

    with pytest.raises(Fault) as raised:
        await _ask(HttpClient(ADDRESS, Servers(nursery, serve).connect))
    assert raised.value.outcome == outcome


async def test_an_interim_answer_is_passed_over(nursery: trio.Nursery) -> None:
    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        await stream.send_all(b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK)

    assert await _ask(HttpClient(ADDRESS, Servers(nursery, serve).connect)) == (b"ok", False)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "/v1"),
        ("https://host/api/v1/", "host", "/api/v1"),
        ("http://[::1]:80", "[::1]", "/v1"),
    ],
)
def test_addresses_are_read(url: str, authority: str, path: str) -> None:
    assert (read_url(url).authority, read_url(url).path) == (authority, path)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x?y=1", "http://a:b@x", "http://x:port"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        read_url(url)


class _TwoAddresses(trio.abc.HostnameResolver):
    """A name with ::1 first, where nothing listens."""

    def __init__(self) -> None:
        self.asked = 0

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:  # Any: a list whose tuples depend on the family
        assert isinstance(port, int)
        self.asked += 1
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    async def getnameinfo(self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int) -> tuple[str, str]:
        raise NotImplementedError


async def test_each_address_of_a_name_is_tried(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    (listener,) = await nursery.start(partial(trio.serve_tcp, partial(_answers, 0), 0, host="127.0.0.1"))
    resolver = _TwoAddresses()
    trio.socket.set_custom_hostname_resolver(resolver)
    dialer = Dialer(read_url(f"http://two.test:{listener.socket.getsockname()[1]}"))
    tried: list[object] = []
    reach = dial.reach_one

    async def note(found: dial.Found, slow: bool) -> trio.SocketStream:
        tried.append(found.family)
        return await reach(found, slow)

    monkeypatch.setattr(dial, "reach_one", note)
    for slow in (False, True):
        async with await dialer.connect(slow) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    assert (resolver.asked, tried) == (1, [socket.AF_INET6, socket.AF_INET, socket.AF_INET])
    nursery.cancel_scope.cancel()


async def test_a_name_of_which_no_address_answers_is_a_fault() -> None:
    trio.socket.set_custom_hostname_resolver(_TwoAddresses())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        with pytest.raises(Fault, match=r"two\.test") as raised:
            await Dialer(read_url(f"http://two.test:{taken.getsockname()[1]}")).connect(False)
    assert raised.value.outcome == "connect"


@pytest.mark.parametrize("extra", [0, 1 << 17])
async def test_a_page_that_is_too_long_is_not_cut_silently(nursery: trio.Nursery, extra: int) -> None:
    page = b"x" * (MOST_PAGE + extra)

    async def serve(_number: int, stream: trio.abc.Stream) -> None:
        await read_head(stream)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)

    client = HttpClient(ADDRESS, Servers(nursery, serve).connect)
    if extra:
        with pytest.raises(Fault, match="more than 4 MiB"):
            await client.fetch("GET", "/metrics")
    else:
        assert await client.fetch("GET", "/metrics") == page
