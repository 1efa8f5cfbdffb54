"""HTTP/1.1 as hypercorn speaks it, less what lets one request be read in two ways or end the process.

Refused and closed: Content-Length together with Transfer-Encoding (request smuggling), a target that is not a path (a
proxy request could pass for a local one), an expectation that nobody will meet. `Upgrade: h2c` is ignored, as RFC 9113
allows; HTTP/2 with prior knowledge still works. Every refusal has the JSON error body of the API.
"""

from itertools import chain
from typing import NoReturn

import h11
from hypercorn.events import Closed
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol, H11WSConnection

from .guard_refusal import ConnectionRefused, error_answer
from .guard_websocket import GuardedWebSocketStream

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


class GuardedHTTP1(H11Protocol):
    async def _check_protocol(self, event: h11.Request) -> None:
        connection = self.connection
        assert isinstance(connection, h11.Connection)  # a WebSocket has no second request
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(HTTP2_PREFACE + connection.trailing_data[0])
        names = {name for name, _ in event.headers}  # h11 has made them lower case
        if b"content-length" in names and b"transfer-encoding" in names:
            await self._refuse("Send either Content-Length or Transfer-Encoding, not both.")
        if not event.target.startswith(b"/") and (event.method, event.target) != (b"OPTIONS", b"*"):
            await self._refuse("The request target must be a path.")
        for name, value in event.headers:
            if name == b"expect" and value.lower() != b"100-continue":
                await self._refuse("The only expectation that this server meets is 100-continue.", 417)

    async def _create_stream(self, request: h11.Request) -> None:
        if not _asks_for_websocket(request):
            await super()._create_stream(request)
            return
        assert isinstance(self.connection, h11.Connection)
        self.connection = H11WSConnection(self.connection)
        self.stream = GuardedWebSocketStream(
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
                method="GET",
                raw_path=request.target,
                state=self.connection_state,
            )
        )

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


def _asks_for_websocket(request: h11.Request) -> bool:
    upgrade = connection = b""
    for name, value in request.headers:
        if name == b"upgrade":
            upgrade = value.strip().lower()
        elif name == b"connection":
            connection = value.lower()
    tokens = {token.strip() for token in connection.split(b",")}
    return request.method == b"GET" and upgrade == b"websocket" and b"upgrade" in tokens
