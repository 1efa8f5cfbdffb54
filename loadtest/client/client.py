"""A small HTTP/1.1 client: one request at a time on a connection, connections kept alive and reused.

h11 reads heads, body.py bodies. No redirects, no proxies, no compression (none is requested). Before reuse, a kept
connection is checked for a close by the server. If the close happens at the same moment, the request is sent again on
a new connection. That is safe, because no byte was answered.
"""

import os
import select
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import h11
import trio
from msgspec import Struct

from .body import BadBody, Body, ChunkedBody, CountedBody, OpenBody
from .chunk import refusal_text
from .dial import Dialer, Endpoint
from .ending import Fault, outcome_of_status
from .request import request_bytes

RECEIVE_BYTES: Final = 65536
MOST_IDLE: Final = 4096  # connections kept for reuse; beyond it they are closed
MOST_REFUSAL: Final = 65536  # bytes read of an error's body
MOST_PAGE: Final = 1 << 22  # bytes read of a page, such as /metrics with many label sets

Connect = Callable[[bool], Awaitable[trio.abc.Stream]]  # the argument: whether the reader is slow


class ResponseHead(Struct, frozen=True):
    status: int
    headers: dict[bytes, bytes]  # names in lower case


class Response:
    """A head, and a body read as it arrives. The connection is reusable after the body's end was read."""

    def __init__(self, stream: trio.abc.Stream, head: ResponseHead, body: Body, rest: bytes, keeps: bool) -> None:
        self.head = head
        self._stream = stream
        self._body = body
        self._rest = rest
        self._keeps = keeps

    @property
    def reusable(self) -> bool:
        return self._keeps and self._body.complete

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Fault if it ends too early or is malformed."""
        while not self._body.complete:
            data, self._rest = self._rest, b""
            if not data:
                data = await _receive(self._stream, "within the answer")
                if not data:
                    if self._body.end():
                        return b""
                    raise Fault("reset", "the connection was closed within the answer")
            try:
                if payload := self._body.feed(data):
                    return payload
            except BadBody as error:
                raise Fault("malformed", str(error)) from error
        return b""

    async def read_all(self, most: int = MOST_REFUSAL) -> bytes:
        found = b""
        while len(found) < most and (data := await self.read()):
            found += data
        return found


class HttpClient:
    """Sends requests to one address. `connect` opens a connection; tests pass their own. `most_idle=0` keeps none."""

    def __init__(self, endpoint: Endpoint, connect: Connect | None = None, *, most_idle: int = MOST_IDLE) -> None:
        self._endpoint = endpoint
        self._connect = connect or Dialer(endpoint).connect
        self._most_idle = most_idle
        self._idle: list[trio.abc.Stream] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b"", *, key: str | None = None, slow: bool = False
    ) -> AsyncGenerator[tuple[Response, float, bool]]:
        """The response, the time the request was sent, and whether its connection was reused.

        Leaving before the body's end closes the connection, which is how HTTP/1.1 clients cancel.
        """
        endpoint = self._endpoint
        data = request_bytes(method, endpoint.path + path, body, host=endpoint.authority, key=key)
        stream, reused = await self._open(slow)
        try:
            try:
                sent, first = await _send(stream, data)
            except Fault:
                if not reused:
                    raise
                await trio.aclose_forcefully(stream)
                stream, reused = await self._connect(slow), False
                sent, first = await _send(stream, data)
            response = await _read_head(stream, first)
            yield response, sent, reused
            if response.reusable and not slow and len(self._idle) < self._most_idle:
                self._idle.append(stream)
                return
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        await trio.aclose_forcefully(stream)

    async def fetch(self, method: str, path: str, body: bytes = b"", *, key: str | None = None) -> bytes:
        """The whole body of an answer. Raises Fault for any status but 200, and for a body beyond MOST_PAGE."""
        async with self.request(method, path, body, key=key) as (response, _sent, _reused):
            status = response.head.status
            if status != 200:
                detail = refusal_text(await response.read_all())
                raise Fault(outcome_of_status(status), f"{status} {detail}", status)
            page = await response.read_all(MOST_PAGE)
            if len(page) >= MOST_PAGE and await response.read():
                raise Fault("malformed", f"{path}: a page of more than {MOST_PAGE >> 20} MiB", status)
            return page

    async def _open(self, slow: bool) -> tuple[trio.abc.Stream, bool]:
        while self._idle and not slow:
            stream = self._idle.pop()
            if _stands(stream):
                return stream, True
            await trio.aclose_forcefully(stream)
        return await self._connect(slow), False

    async def close(self) -> None:
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop())


def _stands(stream: trio.abc.Stream) -> bool:
    """Whether an idle connection can take another request. It cannot if there is data to read, such as its end."""
    if not isinstance(stream, trio.SocketStream):
        return True  # under TLS the data may be a session ticket
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLIN)
    return not poll.poll(0)


async def _send(stream: trio.abc.Stream, data: bytes) -> tuple[float, bytes]:
    """The time the request was sent, and the first bytes of the answer."""
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as error:
        raise Fault("reset", f"before an answer: {_reason(error)}") from error
    sent = trio.current_time()
    first = await _receive(stream, "before an answer")
    if not first:
        raise Fault("reset", "the connection was closed before an answer")
    return sent, first


async def _receive(stream: trio.abc.Stream, when: str) -> bytes:
    """Received bytes, b"" at the end. On a plain socket it waits before it reads, because between tokens there is
    nothing to read. trio's own stream tries first and takes a third more CPU per token (33 against 24 µs).
    """
    try:
        if not isinstance(stream, trio.SocketStream):
            return bytes(await stream.receive_some(RECEIVE_BYTES))
        number = stream.socket.fileno()
        while True:
            await trio.lowlevel.wait_readable(number)
            try:
                return os.read(number, RECEIVE_BYTES)
            except BlockingIOError:  # spurious wake-up
                continue
    except (OSError, trio.BrokenResourceError) as error:
        raise Fault("reset", f"{when}: {_reason(error)}") from error


async def _read_head(stream: trio.abc.Stream, data: bytes) -> Response:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))  # already sent as bytes
    connection.send(h11.EndOfMessage())
    while True:
        try:
            connection.receive_data(data)
            event = connection.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise Fault("malformed", f"no HTTP: {error}") from error
        if isinstance(event, h11.Response):
            return _response(stream, event, connection.trailing_data[0])
        data = await _receive(stream, "within the head")
        if not data:
            raise Fault("reset", "the connection was closed within the head")


def _response(stream: trio.abc.Stream, event: h11.Response, rest: bytes) -> Response:
    headers = {bytes(name): bytes(value) for name, value in event.headers}
    keeps = event.http_version == b"1.1" and b"close" not in headers.get(b"connection", b"").lower()
    body: Body
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = ChunkedBody()
    elif b"content-length" in headers:
        body = CountedBody(int(headers[b"content-length"]))
    else:
        body, keeps = OpenBody(), False
    return Response(stream, ResponseHead(event.status_code, headers), body, rest, keeps)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
