"""A small HTTP/1.1 client: one request at a time on a connection, connections kept alive and reused.

h11 reads heads, body.py bodies. No redirects, no proxies, no compression (none is asked for). A kept connection that
the server closed meanwhile is seen before it is used, or, where both happen at once, the request goes out again on a
new one: as no byte was answered, that is safe to do.
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
MOST_REFUSAL: Final = 65536  # bytes read of a body that is an error
MOST_PAGE: Final = 1 << 22  # bytes read of a page: /metrics of a server with many label sets

Connect = Callable[[bool], Awaitable[trio.abc.Stream]]  # the argument: whether the reader is slow


class ResponseHead(Struct, frozen=True):
    status: int
    headers: dict[bytes, bytes]  # names in lower case


class Response:
    """A head, and a body that is read as it comes. The connection is reusable once the body was read to its end."""

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
        """The next bytes of the body, b"" at its end. Raises Fault where it ends too early or is malformed."""
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
    """Requests to one address. `connect` opens a connection; tests give their own. `most_idle`: 0 keeps none."""

    def __init__(self, endpoint: Endpoint, connect: Connect | None = None, *, most_idle: int = MOST_IDLE) -> None:
        self._endpoint = endpoint
        self._connect = connect or Dialer(endpoint).connect
        self._most_idle = most_idle
        self._idle: list[trio.abc.Stream] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b"", *, key: str | None = None, slow: bool = False
    ) -> AsyncGenerator[tuple[Response, float, bool]]:
        """The response, when the request was sent, and whether its connection was reused.

        Leaving before the body's end closes the connection: that is how a client of HTTP/1.1 cancels.
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
        """The whole body of an answer. Raises Fault for any status but 200."""
        async with self.request(method, path, body, key=key) as (response, _sent, _reused):
            status = response.head.status
            if status != 200:
                detail = refusal_text(await response.read_all())
                raise Fault(outcome_of_status(status), f"{status} {detail}", status)
            return await response.read_all(MOST_PAGE)

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
    """Whether an idle connection can take another request: there is something to read where it was closed."""
    if not isinstance(stream, trio.SocketStream):
        return True  # under TLS there may be a session ticket to read
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLIN)
    return not poll.poll(0)


async def _send(stream: trio.abc.Stream, data: bytes) -> tuple[float, bytes]:
    """When the request was sent, and the first bytes of what came back."""
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
    """What came, b"" at the end. Of a plain socket it waits before it reads: between two tokens there is nothing to
    read, and trio's own stream, which tries first, takes a third more CPU for a token (33 against 24 µs).
    """
    try:
        if not isinstance(stream, trio.SocketStream):
            return bytes(await stream.receive_some(RECEIVE_BYTES))
        number = stream.socket.fileno()
        while True:
            await trio.lowlevel.wait_readable(number)
            try:
                return os.read(number, RECEIVE_BYTES)
            except BlockingIOError:  # woken for nothing
                continue
    except (OSError, trio.BrokenResourceError) as error:
        raise Fault("reset", f"{when}: {_reason(error)}") from error


async def _read_head(stream: trio.abc.Stream, data: bytes) -> Response:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))  # was sent as bytes already
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
