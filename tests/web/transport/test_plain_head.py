"""Heads read past h11: whatever is taken as plain, h11 reads in the same way; what is odd is left to it."""

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triolet.web.transport.plain_head import HEADER_BYTES, read_head

LINES = [
    b"POST /v1/completions HTTP/1.1",
    b"Host: x:8000",
    b"content-type: application/json",
    b"Authorization: Bearer a b",
    b"Content-Length: 12",
]
HEAD = b"\r\n".join([*LINES, b"", b""])
BODY = b'{"prompt":1}'

# A plain head with something wrong in one or two of its lines, or in a line more: whole and broken pieces of fields.
NAMES = st.sampled_from(
    [b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"X-More", b"A b", b""]
)
VALUES = st.sampled_from(
    [
        b"x",
        b"12",
        b"+12",
        b"0012",
        b"1_2",
        b"12, 12",
        b"chunked",
        b"close",
        b"",
        b" ",
        b"a\nb",
        b"a\rb",
        b"\xff",
        b"a\0",
    ]
)
SEPARATORS = st.sampled_from([b": ", b": ", b": ", b":", b" : ", b":\t", b":  ", b""])
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n ", b" \r\n"])
FIELD = st.tuples(NAMES, SEPARATORS, VALUES, ENDS).map(b"".join)
START = st.sampled_from([LINES[0] + b"\r\n"] * 3 + [b"POST  /v1 HTTP/1.1\r\n", b"POST /a?b HTTP/1.1\r\n"])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    lines = [line + b"\r\n" for line in LINES[1:]]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(lines) - 1))
        name = lines[place].partition(b":")[0]
        other = draw(FIELD)
        lines[place] = draw(st.sampled_from([other, name + b":" + other.partition(b":")[2], lines[place] + other]))
    return draw(START) + b"".join(lines) + b"\r\n"


def by_h11(data: bytes) -> tuple[h11.Request, bytes]:
    """The request, and its body as far as it is there."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    return request, body


@settings(max_examples=1000, deadline=None)
@given(heads())
@example(HEAD)
@example(HEAD.replace(b"Authorization: ", b"Authorization:"))
def test_what_is_plain_h11_reads_in_the_same_way(head: bytes) -> None:
    data = head + BODY
    plain = read_head(data)
    if plain is None:
        return
    request, body = by_h11(data)
    assert (request.method, request.target, request.http_version) == (b"POST", plain.path.encode(), b"1.1")
    for name, value in request.headers:
        assert plain.headers.get(name.decode()) == value.decode()
    assert len({name for name, _ in request.headers}) == len(request.headers)
    assert data[plain.size : plain.size + plain.content_length] == body


def test_an_ordinary_head_is_plain() -> None:
    head = read_head(HEAD + BODY)
    assert head is not None
    assert (head.path, head.content_length, head.size) == ("/v1/completions", 12, len(HEAD))
    assert head.headers.get("AUTHORIZATION", "") == "Bearer a b"
    assert head.headers.get("x-request-id") is None


ODD = {
    "not all there": HEAD[:-1],
    "nothing": b"",
    "another method": HEAD.replace(b"POST", b"PUT"),
    "a query": HEAD.replace(b"completions", b"completions?a=1"),
    "another version": HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no host": HEAD.replace(b"Host: x:8000\r\n", b""),
    "two hosts": HEAD.replace(b"Host", b"Host: y\r\nHost"),
    "no length": HEAD.replace(b"Content-Length: 12\r\n", b""),
    "two lengths": HEAD.replace(b"Content-Length", b"content-length: 12\r\nContent-Length"),
    "a signed length": HEAD.replace(b"12\r\n", b"+12\r\n"),
    "a length with zeros": HEAD.replace(b"12\r\n", b"012\r\n"),
    "chunks": HEAD.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked"),
    "a length and chunks": HEAD.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
    "an expectation": HEAD.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "an upgrade": HEAD.replace(b"Host", b"Upgrade: h2c\r\nHost"),
    "a browser": HEAD.replace(b"Host", b"Origin: http://x\r\nHost"),
    "the last request": HEAD.replace(b"Host", b"Connection: close\r\nHost"),
    "another type": HEAD.replace(b"application/json", b"text/plain"),
    "a compressed body": HEAD.replace(b"Host", b"Content-Encoding: gzip\r\nHost"),
    "a folded line": HEAD.replace(b"Bearer a b", b"Bearer\r\n a b"),
    "a bare line feed": HEAD.replace(b"Host: x:8000\r\n", b"Host: x:8000\n"),
    "a bare carriage return": HEAD.replace(b"Bearer a b", b"Bearer a\rb"),
    "a zero byte": HEAD.replace(b"Bearer a b", b"Bearer a\0b"),
    "a space before the colon": HEAD.replace(b"Host:", b"Host :"),
    "a name that is not ASCII": HEAD.replace(b"Host", b"H\xc3\xb6st"),
    "a value that is not ASCII": HEAD.replace(b"Bearer a b", b"Bearer \xc3\xb6"),
    "a head above the limit": HEAD.replace(b"Bearer a b", b"a" * (HEADER_BYTES - len(HEAD) + len(b"Bearer a b") + 1)),
    "an empty value": HEAD.replace(b"Bearer a b", b""),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_is_left_to_h11(case: str) -> None:
    assert ODD[case] != HEAD
    assert read_head(ODD[case]) is None
