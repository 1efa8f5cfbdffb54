"""A minimal HTTP/1.1 client: one request at a time on a connection, connections kept alive and reused.

h11 writes requests and reads heads; http_body.py reads bodies. No redirects, no proxies, no compression (none is asked
for). A kept connection that the server closed meanwhile is seen before it is used, or, where both happen at once, the
request goes out again on a new one: as no byte was answered, that is safe to do.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import h11
import trio
from msgspec import Struct

from .exchange import Fault
from .http_body import BadBody, Body, ChunkedBody, CountedBody, OpenBody
from .intake import Take
from .wire import Address, Connect, Wire

MOST_IDLE: Final = 4096  # connections kept for reuse; beyond it they are closed
MOST_REFUSAL: Final = 65536  # bytes read of a body that is an error


class Head(Struct, frozen=True):
    status: int
    headers: dict[bytes, bytes]  # names in lower case


class Response:
    """A head, and a body that is read as it comes. The connection is reusable once the body was read to its end."""

    def __init__(self, wire: Wire, head: Head, body: Body, rest: bytes, keeps: bool) -> None:
        self.head = head
        self._wire = wire
        self._body = body
        self._rest = rest
        self._keeps = keeps

    @property
    def reusable(self) -> bool:
        return self._keeps and self._body.complete

    @property
    def complete(self) -> bool:
        return self._body.complete

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Fault where it ends too early or is malformed."""
        while not self._body.complete:
            data, self._rest = self._rest, b""
            if not data:
                try:
                    data = await self._wire.receive()
                except (OSError, trio.BrokenResourceError) as error:
                    raise Fault("reset", f"within the answer: {_reason(error)}") from error
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

    async def follow(self, take: Take) -> None:
        """`take` every part of the body as it comes, until it returns True or the body ends. Raises Fault as `read`."""

        def feed(data: bytes) -> bool:
            if not data:
                if self._body.end():
                    return True
                raise Fault("reset", "the connection was closed within the answer")
            try:
                payload = self._body.feed(data)
            except BadBody as error:
                raise Fault("malformed", str(error)) from error
            return bool(payload and take(payload)) or self._body.complete

        rest, self._rest = self._rest, b""
        if self._body.complete or (rest and feed(rest)):
            return
        try:
            await self._wire.follow(feed)
        except (OSError, trio.BrokenResourceError) as error:
            raise Fault("reset", f"within the answer: {_reason(error)}") from error

    async def read_all(self, most: int = MOST_REFUSAL) -> bytes:
        found = b""
        while len(found) < most and (data := await self.read()):
            found += data
        return found


class HttpClient:
    """Requests to one address. `connect` opens a connection; tests give their own."""

    def __init__(self, address: Address, connect: Connect) -> None:
        self._address = address
        self._connect = connect
        self._idle: list[Wire] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b"", *, key: str | None = None, slow: bool = False
    ) -> AsyncGenerator[tuple[Response, float, bool]]:
        """The response, when the request was sent, and whether its connection was reused.

        Leaving before the body's end closes the connection: that is how a client of HTTP/1.1 cancels.
        """
        connection = h11.Connection(h11.CLIENT)
        headers = [("host", self._address.authority), ("accept", "text/event-stream, application/json")]
        if key is not None:
            headers.append(("authorization", f"Bearer {key}"))
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = connection.send(h11.Request(method=method, target=self._address.path + path, headers=headers))
        assert head is not None
        # One send: with two, Nagle's algorithm and delayed acknowledgements could meet on servers' sockets.
        data = head + body
        connection.send(h11.Data(data=body))
        connection.send(h11.EndOfMessage())
        wire, reused = await self._take(slow)
        try:
            try:
                sent, first = await _send(wire, data)
            except Fault:
                if not reused:
                    raise
                await wire.close()
                wire, reused = await self._connect(slow), False
                sent, first = await _send(wire, data)
            response = await _read_head(wire, connection, first)
            yield response, sent, reused
            if response.reusable and not slow and len(self._idle) < MOST_IDLE:
                self._idle.append(wire)
                return
        except BaseException:
            await wire.close()
            raise
        await wire.close()

    async def _take(self, slow: bool) -> tuple[Wire, bool]:
        while self._idle and not slow:
            wire = self._idle.pop()
            if wire.stands():
                return wire, True
            await wire.close()
        return await self._connect(slow), False

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()


async def _send(wire: Wire, data: bytes) -> tuple[float, bytes]:
    """When the request was sent, and the first bytes of what came back."""
    try:
        await wire.send(data)
        sent = trio.current_time()
        first = await wire.receive()
    except (OSError, trio.BrokenResourceError) as error:
        raise Fault("reset", f"before an answer: {_reason(error)}") from error
    if not first:
        raise Fault("reset", "the connection was closed before an answer")
    return sent, first


async def _read_head(wire: Wire, connection: h11.Connection, data: bytes) -> Response:
    while True:
        try:
            connection.receive_data(data)
            event = connection.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise Fault("malformed", f"no HTTP: {error}") from error
        if isinstance(event, h11.Response):
            return _response(wire, event, connection.trailing_data[0])
        try:
            data = await wire.receive()
        except (OSError, trio.BrokenResourceError) as error:
            raise Fault("reset", f"within the head: {_reason(error)}") from error
        if not data:
            raise Fault("reset", "the connection was closed within the head")


def _response(wire: Wire, event: h11.Response, rest: bytes) -> Response:
    headers = {bytes(name): bytes(value) for name, value in event.headers}
    keeps = event.http_version == b"1.1" and b"close" not in headers.get(b"connection", b"").lower()
    body: Body
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = ChunkedBody()
    elif b"content-length" in headers:
        body = CountedBody(int(headers[b"content-length"]))
    else:
        body, keeps = OpenBody(), False
    return Response(wire, Head(event.status_code, headers), body, rest, keeps)


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error
    return str(cause) or type(cause).__name__
