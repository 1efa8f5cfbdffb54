"""WebSockets as hypercorn speaks them, with the ways closed by which one client could end or fill the process.

- The handshake is refused (400) when its headers are not ASCII or bytes follow it before it was answered.
- permessage-deflate is never negotiated: 261 KB of it inflate to 256 MB before any size check sees them.
- A message above `config.websocket_max_message_size`, or a malformed frame, closes the connection (1009, 1002, 1007);
  hypercorn would go on collecting the message.
- A handshake that the application refuses ends its HTTP/1.1 connection, and says so: it has become a WebSocket's, and a
  further request on it would get no answer.

The application finds a `DirectWriter` in its scope (direct.py): messages written there are frames beside wsproto's,
which holds no state between two messages of a server. Once a closing frame was sent it takes nothing more. Pings go the
same way, all sockets' from one task (pings.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from hypercorn.protocol.events import Body, Data, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WSStream
from hypercorn.typing import ConnectionState as ConnectionValues
from hypercorn.typing import WebsocketResponseBodyEvent
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from .direct import FRAME_WRITER, KEEP_PINGING, WRITER, DirectWriter, Written, text_frame
from .refusal import error_answer
from .websocket import is_decoded

PING: Final = b"\x89\x00"  # without a payload, as hypercorn's


class GuardedWebSocketStream(WSStream):
    _writer: DirectWriter  # of the connection

    async def handle(self, event: Event) -> None:
        if self.closed:
            return
        if isinstance(event, Request):
            await self._open(event)
        elif isinstance(event, Body | Data) and not self.handshake.accepted:
            await self._refuse("Wait for the answer to the WebSocket handshake before sending frames.")
        else:
            await super().handle(event)

    async def _open(self, request: Request) -> None:
        for name, value in request.headers:
            if is_decoded(name) and not value.isascii():
                await self._refuse(f"The header {name.decode('ascii')} must be ASCII.")
                return
        headers = [header for header in request.headers if header[0] != b"sec-websocket-extensions"]
        writer: DirectWriter | None = request.state.get(WRITER)
        if writer is not None:
            self._writer = writer
            own = DirectWriter(self.write_text, writer.finish)
            request = replace(request, state=ConnectionValues({**request.state, FRAME_WRITER: own}))
        await super().handle(replace(request, headers=headers))
        if self.closed:  # hypercorn has answered an invalid handshake and would leave the socket open
            await self.send(StreamClosed(stream_id=self.stream_id))

    async def _refuse(self, reason: str) -> None:
        self.closed = True  # whatever the application still sends is dropped
        await self._send_error_response(400, reason)
        await self._tell({"type": "websocket.disconnect", "code": CloseReason.PROTOCOL_ERROR.value, "reason": None})
        await self.send(StreamClosed(stream_id=self.stream_id))

    def write_text(self, text: bytes) -> Written:
        """A message, outside any task."""
        if self.connection.state is not ConnectionState.OPEN:
            return "nothing"
        return self._writer.write(text_frame(text))

    def ping(self) -> None:
        """Outside any task."""
        if self.connection.state is ConnectionState.OPEN:
            written = self._writer.write(PING)
            if written == "part":
                self.task_group.spawn(self._writer.finish)  # pyright: ignore  untyped in hypercorn
            elif written == "nothing":  # a client that does not read: this send finds out for how long
                self.task_group.spawn(self._send_wsproto_event, Ping())  # pyright: ignore  untyped in hypercorn

    async def _send_pings(self) -> None:
        """hypercorn's, as a task of each socket: here only the first one."""
        await self._send_wsproto_event(Ping())
        self.scope["state"][KEEP_PINGING](self.ping)

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)  # pyright: ignore  untyped in hypercorn
                except FrameTooLargeError:
                    await self._close(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    return
                if event.message_finished:
                    await self._tell(self.buffer.to_message())  # pyright: ignore  untyped in hypercorn
                    self.buffer.clear()
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                answer = event.response() if self.connection.state is ConnectionState.REMOTE_CLOSING else event
                await self._close(answer)
                return

    async def _send_rejection(self, message: WebsocketResponseBodyEvent) -> None:
        if self.state is ASGIWebsocketState.HANDSHAKE and self.scope["http_version"].startswith("1"):
            self.response["headers"] = [*self.response["headers"], (b"connection", b"close")]
        await super()._send_rejection(message)

    async def _tell(self, message: dict[str, object]) -> None:
        put: Callable[[object], Awaitable[None]] | None = self.app_put  # pyright: ignore  untyped in hypercorn
        if put is not None:  # there is an application from the moment that the handshake is valid
            await put(message)

    async def _close(self, event: CloseConnection) -> None:
        await self._send_wsproto_event(event)  # nothing is sent when we had closed first
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int, reason: str | None = None) -> None:
        headers, body = error_answer(status_code, reason)
        await self.send(Response(stream_id=self.stream_id, status_code=status_code, headers=headers))
        await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
