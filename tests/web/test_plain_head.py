"""Heads read past h11: whatever is taken as plain, h11 reads in the same way; what is odd is left to it."""

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triolet.web.plain_head import read_head

LINES = [
    b"POST /v1/completions HTTP/1.1",
    b"Host: x:8000",
    b"content-type: application/json",
    b"Authorization: Bearer a b",
    b"Content-Length: 12",
]
HEAD = b"\r\n".join([*LINES, b"", b""])
BODY = b'{"prompt":1}'

# Pieces that heads are made of, whole and broken: most examples are a line away from a plain head.
NAMES = st.sampled_from(
    [
        b"Host",
        b"content-type",
        b"Content-Length",
        b"Connection",
        b"X-Long",
        b"Transfer-Encoding",
        b"Expect",
        b"A b",
        b"",
    ]
)
VALUES = st.sampled_from(
    [
        b"x",
        b"application/json",
        b"12",
        b"+12",
        b"0012",
        b"1_2",
        b"12, 12",
        b"chunked",
        b"keep-alive",
        b"close",
        b"",
        b" ",
    ]
) | st.binary(max_size=6)
SEPARATORS = st.sampled_from([b": ", b":", b" : ", b":\t", b":  ", b""])
ENDS = st.sampled_from([b"\r\n", b"\n", b"\r", b"\r\n ", b"\r\n\r\n", b" \r\n"])
FIELD = st.tuples(NAMES, SEPARATORS, VALUES, ENDS).map(b"".join)
START = st.sampled_from(
    [
        b"POST /v1/completions HTTP/1.1\r\n",
        b"POST  /v1 HTTP/1.1\r\n",
        b"POST /a?b HTTP/1.1\r\n",
        b"POST /a HTTP/1.0\r\n",
    ]
)
HEADS = st.builds(
    lambda start, fields, more: start + b"".join(fields) + more + b"\r\n",
    START,
    st.permutations([line + b"\r\n" for line in LINES[1:]]),
    st.lists(FIELD, max_size=2).map(b"".join),
)


def by_h11(data: bytes) -> tuple[h11.Request, bytes]:
    """The request, and its body as far as it is there."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    return request, body


@given(HEADS)
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
    "an empty value": HEAD.replace(b"Bearer a b", b""),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_is_left_to_h11(case: str) -> None:
    assert ODD[case] != HEAD
    assert read_head(ODD[case]) is None
