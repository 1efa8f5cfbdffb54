"""Heads that can be read in two ways are refused; what may be ignored is ignored; every answer has its phrase."""

import json

import pytest
import trio

from triolet.web.transport.strict_head import head_fault

from ..conftest import ReadToEnd, StartServer

SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run
HOST = b"Host: x\r\n"
UPLOAD = b"POST /upload HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\tb\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"G" * 10_000 + b" / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.9\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /\r\n", 400),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
        (b"SSH-2.", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (UPLOAD + b"Content-Length: 5, 5\r\n\r\nhello", 400),
        (UPLOAD + b"Content-Length: 5\r\ncontent-length:5\r\n\r\nhello", 400),
        (UPLOAD + b"Content-Length: +5\r\n\r\nhello", 400),
    ],
)
async def test_it_is_refused(start_server: StartServer, read_to_end: ReadToEnd, head: bytes, status: int) -> None:
    served = await start_server()
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(head)
        answer, _, body = (await read_to_end(stream)).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert len(body) < 500  # nothing of the head is repeated


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"M-SEARCH * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"VERSION-CONTROL / HTTP/1.1\r\nHost: x\r\n\r\n",
        UPLOAD + b"Content-Length: 5\r\n\r\nline\nend\r\n folded?",  # a body may hold anything
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_every_beginning_of_a_good_head_is_good(head: bytes) -> None:
    assert [head_fault(head[:end]) for end in range(len(head) + 1)] == [None] * (len(head) + 1)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n\r\n",
        UPLOAD + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello\r\n",
        UPLOAD + b"Content-Length: 5\r\n\r\nhello\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        UPLOAD + b"Content-Length: 5\r\nConnection: close\r\n\r\nhelloGET /canary HTTP/1.1\r\n",
    ],
)
@pytest.mark.parametrize("byte_by_byte", [False, True])
async def test_empty_lines_and_bytes_after_the_last_request_cost_no_answer(
    start_server: StartServer, read_to_end: ReadToEnd, sent: bytes, byte_by_byte: bool
) -> None:
    served = await start_server()
    stream = await served.connect()
    with trio.fail_after(SOON):
        for piece in (bytes([byte]) for byte in sent) if byte_by_byte else [sent]:
            try:
                await stream.send_all(piece)
            except trio.BrokenResourceError:  # it was answered before its last, needless byte
                break
        answers = await read_to_end(stream)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b"HTTP/1.1") == sent.count(HOST)


async def test_a_refused_head_request_is_answered_without_a_body(
    start_server: StartServer, read_to_end: ReadToEnd
) -> None:
    served = await start_server()
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(b"HEAD / HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\n\r\n")
        head, _, body = (await read_to_end(stream)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 417 Expectation Failed\r\n")
    assert b"content-length" in head.lower()
    assert body == b""


async def test_every_status_has_its_phrase(start_server: StartServer) -> None:
    served = await start_server()
    assert (await served.get("/")).startswith(b"HTTP/1.1 200 OK\r\n")
    assert (await served.get("/nowhere")).startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert (await served.get("/upload")).startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    stream = await served.connect()
    with trio.fail_after(SOON):
        await stream.send_all(UPLOAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 Continue\r\n")
