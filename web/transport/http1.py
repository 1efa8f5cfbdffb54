"""HTTP/1.1 as hypercorn speaks it, less what lets one request be read in two ways or end the process.

Refused and closed: Content-Length together with Transfer-Encoding (request smuggling), a target that is not a path (a
proxy request could pass for a local one), an expectation that nobody will meet, a head above the limit though it came
whole. `Upgrade: h2c` is ignored, as RFC 9113 allows; HTTP/2 with prior knowledge still works. Every refusal has the
JSON error body of the API.

The head of a response leaves with the first piece of its body, and the last piece with the body's end: a short answer
is one write, where hypercorn makes three or four, each with a turn of the event loop.
"""

from itertools import chain
from typing import NoReturn

import h11
from hypercorn.events import Closed, RawData
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request, Response, StreamClosed
from hypercorn.protocol.h11 import (
    STREAM_ID,
    H2ProtocolAssumedError,
    H11Protocol,
    H11WSConnection,
)
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ASGISendEvent, H11SendableEvent

from .refusal import MESSAGES, ConnectionRefused, error_answer
from .websocket import SOCKETS, Sockets, handshake_answer
from .wsproto_websocket import GuardedWebSocketStream

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


class JoinedHTTPStream(HTTPStream):
    """Knows whether the piece of a body that it sends is the last one."""

    sends_last = False

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is not None and message["type"] == "http.response.body":
            self.sends_last = not message.get("more_body", False)
        await super().app_send(message)


class GuardedHTTP1(H11Protocol):
    _held = b""  # of the response in progress: leaves with what follows

    def begin_plain(self) -> bool:
        """Whether a request may go past this protocol: it is between two, and none is the connection's last."""
        connection = self.connection
        if (
            self.stream is not None
            or connection.our_state is not h11.IDLE
            or connection.their_state is not h11.IDLE
            or connection.trailing_data[0]
            or self.keep_alive_requests + 1 >= self.config.keep_alive_max_requests
        ):
            return False
        self.keep_alive_requests += 1
        return True

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed) and self._held:  # the application gave up
            await self._write(b"")
        await super().stream_send(event)

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        last = isinstance(self.stream, JoinedHTTPStream) and self.stream.sends_last
        if isinstance(event, h11.Response) or (last and isinstance(event, h11.Data)):
            self._held += data
        else:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        await self.send(RawData(data=data))

    async def _check_protocol(self, event: h11.Request) -> None:
        connection = self.connection
        assert isinstance(connection, h11.Connection)  # a WebSocket has no second request
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(HTTP2_PREFACE + connection.trailing_data[0])
        if _size(event) > self.config.h11_max_incomplete_size:  # h11 limits only what is not all there
            await self._refuse(MESSAGES[431], 431)
        names = {name for name, _ in event.headers}  # h11 has made them lower case
        if b"content-length" in names and b"transfer-encoding" in names:
            await self._refuse("Send either Content-Length or Transfer-Encoding, not both.")
        if not event.target.startswith(b"/") and (event.method, event.target) != (b"OPTIONS", b"*"):
            await self._refuse("The request target must be a path.")
        for name, value in event.headers:
            if name == b"expect" and value.lower() != b"100-continue":
                await self._refuse("The only expectation that this server meets is 100-continue.", 417)

    async def _create_stream(self, request: h11.Request) -> None:
        kind: type[GuardedWebSocketStream | JoinedHTTPStream] = JoinedHTTPStream
        if _asks_for_websocket(request):
            assert isinstance(self.connection, h11.Connection)
            self.connection = H11WSConnection(self.connection)
            if await self._open_socket(request):
                return
            kind = GuardedWebSocketStream
        self.stream = kind(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        if kind is JoinedHTTPStream:
            self.keep_alive_requests += 1
            await self.context.mark_request()

    async def _open_socket(self, request: h11.Request) -> bool:
        """Whether it is open now, past the application: this protocol has done its part then."""
        sockets: Sockets | None = self.connection_state.get(SOCKETS)
        assert isinstance(self.connection, H11WSConnection)
        if sockets is None or self.connection.buffer or (opener := sockets.openers.get(request.target)) is None:
            return False
        headers = list(request.headers)
        answer = handshake_answer(request.http_version, headers)
        conversation = None if answer is None else opener(headers)
        if answer is None or conversation is None:
            return False
        await self.stream_send(Response(stream_id=STREAM_ID, status_code=101, headers=answer))
        sockets.open(conversation)
        return True

    async def _send_error_response(self, status_code: int, reason: str | None = None) -> None:
        headers, body = error_answer(status_code, reason)
        fixed = self.config.response_headers("h11")
        await self._send_h11_event(h11.Response(status_code=status_code, headers=list(chain(headers, fixed))))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _refuse(self, reason: str, status: int = 400) -> NoReturn:
        await self._send_error_response(status, reason)
        await self.send(Closed())
        raise ConnectionRefused(reason)


def _size(request: h11.Request) -> int:
    """Bytes of its head, less the spaces that h11 leaves out."""
    line = len(b"%b %b HTTP/1.1\r\n" % (request.method, request.target))
    return line + sum(len(name) + len(value) + len(b":\r\n") for name, value in request.headers) + len(b"\r\n")


def _asks_for_websocket(request: h11.Request) -> bool:
    upgrade = connection = b""
    for name, value in request.headers:
        if name == b"upgrade":
            upgrade = value.strip().lower()
        elif name == b"connection":
            connection = value.lower()
    tokens = {token.strip() for token in connection.split(b",")}
    return request.method == b"GET" and upgrade == b"websocket" and b"upgrade" in tokens
