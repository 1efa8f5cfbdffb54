"""HTTP/1.1 as hypercorn speaks it, without inputs that can be read in two ways or end the process.

Refused, and the connection closed: Content-Length together with Transfer-Encoding (request smuggling); a target that
is not a path (a proxy request could pass for a local one); two keys; an unsupported `Expect`; a complete head above
the limit; one that is not complete in time; and whatever strict_head.py finds.
`Upgrade: h2c` is ignored, as RFC 9113 allows; HTTP/2 with prior knowledge still works. Every refusal has the API's
JSON error body.

A response's head is sent with the first piece of its body, and the body's end with the last piece. A short answer is
one write; hypercorn makes three or four, each with a turn of the event loop.

WebSockets are opened here: the handshake is answered with 101, and HTTP is over. An invalid handshake is refused. If
the application refuses it, or the path has no WebSocket, it is answered as the plain GET that it also is.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final, NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request, Response, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import AppWrapper, ASGISendEvent, ConnectionState, H11SendableEvent, WorkerContext

from ...protocol.errors import ApiError, ErrorCode
from ..errors import error_content
from ..exchange import ADDRESS, Conversation, Headers, Opener
from .plain_head import PlainHeaders
from .strict_head import StrictConnection
from .websocket import handshake_answer, is_handshake

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
REFUSALS: dict[int, tuple[ErrorCode, str]] = {  # by status, unless a better message is given
    400: ("bad_request", "The request is not valid HTTP for this server."),
    408: ("request_timeout", "The head of the request did not arrive in time."),
    417: ("expectation_failed", "The only expectation that this server meets is 100-continue."),
    431: ("headers_too_large", "The request line and headers are larger than 16 KiB."),
    501: ("internal_error", "The Transfer-Encoding is not supported; send chunked or a Content-Length."),
}
ONCE: Final = (b"authorization", b"x-api-key", b"origin")  # fields that a check must not read differently from a proxy
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii")) for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """With the standard reason phrase: h2load counts an answer without one as failed."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class ConnectionRefused(Exception):
    """Ends one connection on purpose. The peer was answered; the reason is logged in one line."""


class JoinedHTTPStream(HTTPStream):
    """Knows whether the piece of the body it sends is the last one."""

    sends_last = False

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is not None and message["type"] == "http.response.body":
            self.sends_last = not message.get("more_body", False)
        await super().app_send(message)


class ProtocolArguments(NamedTuple):
    """What hypercorn's protocol classes are made of, in their order."""

    app: AppWrapper
    config: Config
    context: WorkerContext
    tasks: TaskGroup
    state: ConnectionState
    secure: bool
    client: tuple[str, int] | None
    server: tuple[str, int] | None
    send: Callable[[ConnectionEvent], Awaitable[None]]


class HandshakeHead(NamedTuple):
    """A WebSocket's handshake as the application sees it."""

    headers: Headers
    args: tuple[str, ...]
    address: str | None


class GuardedHTTP1(H11Protocol):
    openers: Mapping[str, Opener] = {}  # of WebSockets, by path
    converse: Callable[[Conversation], None]  # called when a WebSocket is open
    keep_alive_requests: int  # set by hypercorn, as yet without a type
    _held = b""  # part of the current response; sent with what follows
    _head_only = False  # the request is a HEAD

    def __init__(self, arguments: ProtocolArguments) -> None:
        super().__init__(*arguments)
        most = arguments.config.h11_max_incomplete_size
        self.connection = StrictConnection(h11.SERVER, max_incomplete_event_size=most)

    @property
    def head_begun(self) -> bool:
        """Whether part of a request's head has arrived, and not all of it."""
        return self.connection.their_state is h11.IDLE and bool(self.connection.trailing_data[0])

    async def refuse_slow_head(self) -> None:
        with suppress(ConnectionRefused):
            await self._refuse(status=408)

    def begin_plain(self) -> bool:
        """Whether a request may bypass this protocol: it is between requests, and the connection stays open."""
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
        if isinstance(event, Response):
            if self.connection.their_state is h11.SEND_BODY:  # the reader may hold the rest, and passes it on now
                await trio.lowlevel.checkpoint()
            if self._ends_unannounced:
                event = replace(event, headers=[*event.headers, (b"connection", b"close")])
        if isinstance(event, StreamClosed) and self._held:  # the application gave up early
            await self._write(b"")
        await super().stream_send(event)

    @property
    def _ends_unannounced(self) -> bool:
        """Whether hypercorn will close after this answer without telling the client, whose next request would be lost.

        It does so when part of the body is still to come, and when the server stops.
        """
        if self.keep_alive_requests >= self.config.keep_alive_max_requests:
            return False  # this it tells
        return self.connection.their_state is h11.SEND_BODY or self.context.terminated.is_set()

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response | h11.InformationalResponse):
            data = status_line(event.status_code) + data.partition(b"\r\n")[2]  # h11 leaves the phrase out
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
        assert isinstance(connection, h11.Connection)  # never after a WebSocket handshake
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(HTTP2_PREFACE + connection.trailing_data[0])
        self._head_only = event.method == b"HEAD"
        if _size(event) > self.config.h11_max_incomplete_size:  # h11 limits only incomplete heads
            await self._refuse(status=431)
        names = [name for name, _ in event.headers]  # h11 made them lower case
        if b"content-length" in names and b"transfer-encoding" in names:
            await self._refuse("Send either Content-Length or Transfer-Encoding, not both.")
        for name in ONCE:
            if names.count(name) > 1:
                await self._refuse(f"Send the header {name.decode().capitalize()} once.")
        if not event.target.startswith(b"/") and (event.method, event.target) != (b"OPTIONS", b"*"):
            await self._refuse("The request target must be a path.")
        for name, value in event.headers:
            if name == b"expect" and value.lower() != b"100-continue":
                await self._refuse(status=417)

    async def _create_stream(self, request: h11.Request) -> None:
        if is_handshake(request.method, request.headers) and await self._open_socket(request):
            return
        self.stream = JoinedHTTPStream(
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
        self.keep_alive_requests += 1
        await self.context.mark_request()

    async def _open_socket(self, request: h11.Request) -> bool:
        """Whether the WebSocket is open now; this protocol is then finished."""
        fields = list(request.headers)
        answer = handshake_answer(request.http_version, fields)
        if answer is None:
            await self._refuse("This is no handshake of a WebSocket: version 13, with a key, in ASCII.")
        assert isinstance(self.connection, h11.Connection)
        if self.connection.trailing_data[0]:
            await self._refuse("Wait for the answer to the WebSocket handshake before sending frames.")
        path, _, query = request.target.decode("ascii").partition("?")
        opener = self.openers.get(unquote(path))
        if opener is None:
            return False
        if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in fields):
            await self._refuse("A WebSocket handshake has no body.")  # it would be read as frames
        values = {name.decode("ascii"): value.decode("latin1") for name, value in reversed(fields)}  # the first counts
        names = tuple(name for name, _ in parse_qsl(query, keep_blank_values=True))
        try:
            conversation = opener(HandshakeHead(PlainHeaders(values), names, self.connection_state.get(ADDRESS)))
        except ApiError:
            return False
        answer += self.config.response_headers("h11")
        await self._send_h11_event(h11.InformationalResponse(status_code=101, headers=answer))
        self.converse(conversation)
        return True

    async def _send_error_response(self, status_code: int, reason: str = "") -> None:
        code, message = REFUSALS.get(status_code, REFUSALS[400])
        content = error_content(ApiError(code, reason or self._fault or message))
        assert isinstance(content.body, bytes)
        fields = [*content.fields, (b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=fields))
        if not self._head_only:
            await self._send_h11_event(h11.Data(data=content.body))
        await self._send_h11_event(h11.EndOfMessage())

    @property
    def _fault(self) -> str:
        return self.connection.refusal if isinstance(self.connection, StrictConnection) else ""

    async def _refuse(self, reason: str = "", status: int = 400) -> NoReturn:
        await self._send_error_response(status, reason)
        await self.send(Closed())
        raise ConnectionRefused(reason or REFUSALS[status][1])


def _size(request: h11.Request) -> int:
    """Bytes of its head, without the spaces that h11 drops."""
    line = len(b"%b %b HTTP/1.1\r\n" % (request.method, request.target))
    return line + sum(len(name) + len(value) + len(b":\r\n") for name, value in request.headers) + len(b"\r\n")
