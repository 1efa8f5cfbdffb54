"""A WebSocket after its handshake: the connection's protocol from then on, without the web framework.

There may be thousands of open sockets, mostly idle. So no HTTP state is kept, and the connection's reader passes
messages to the conversation directly. wsproto's parser exists only while a message is half read, because it has no
state between messages.

- permessage-deflate is never negotiated: 261 KB of it inflate to 256 MB before any size check sees them.
- A message above `max_message`, or before the key above 4 KiB, closes the connection (1009), as a malformed frame does
  (1002, 1007). So does a flood of pings or fragments (1008, frame_budget.py), and a message for which there is no room
  (1013, body_budget.py).
- A client that says nothing between four pings is gone, and its connection ends.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.ws_stream import FrameTooLargeError, Handshake, WebsocketBuffer
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.events import Event as SocketEvent
from wsproto.frame_protocol import CloseReason

from ..body_budget import BodyBudget, BodyShare
from ..errors import unexpected
from ..exchange import Conversation, Field, Written
from .frame_budget import USEFUL_BYTES, FrameBudget
from .sending import Sending

PING: Final = b"\x89\x00"  # no payload
UNTRUSTED_BYTES: Final = 4096  # of a message before the key: an `auth` frame
UNANSWERED_PINGS: Final = 3
TRY_AGAIN_LATER: Final = 1013  # IANA's registry of close codes


def is_handshake(method: bytes, fields: Sequence[Field]) -> bool:
    upgrade = connection = b""
    for name, value in fields:
        if name == b"upgrade":
            upgrade = value.strip().lower()
        elif name == b"connection":
            connection = value.lower()
    return method == b"GET" and upgrade == b"websocket" and b"upgrade" in map(bytes.strip, connection.split(b","))


def handshake_answer(version: bytes, fields: Sequence[Field]) -> list[Field] | None:
    """The header fields of the 101 answer; None for an invalid handshake."""
    decoded = [value for name, value in fields if name == b"connection" or name.startswith(b"sec-websocket-")]
    if not all(map(bytes.isascii, decoded)):  # hypercorn decodes them as ASCII
        return None
    handshake = Handshake([field for field in fields if field[0] != b"sec-websocket-extensions"], version.decode())
    return handshake.accept(None, [])[1] if handshake.is_valid() else None


def text_frame(text: bytes) -> bytes:
    """A complete message from a server (RFC 6455, 5.2): final, text, unmasked."""
    length = len(text)
    return (_FRAME_HEADS[length] if length < len(_FRAME_HEADS) else _frame_head(length)) + text


def _frame_head(length: int) -> bytes:
    if length < 126:
        return bytes((0x81, length))
    if length < 1 << 16:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")


_FRAME_HEADS: Final = tuple(map(_frame_head, range(512)))  # for nearly all messages: one token and its envelope


class OpenSocket:
    """The `Wire` of its conversation. `hang_up` ends the connection once everything is sent."""

    __slots__ = (
        "_budget", "_conversation", "_hang_up", "_max_message", "_open", "_partial", "_pieces", "_reading", "_sending",
        "_share", "_unanswered", "nursery",
    )  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        sending: Sending,
        nursery: trio.Nursery,
        hang_up: Callable[[], Awaitable[None]],
        max_message: int,
        bodies: BodyBudget,
    ) -> None:
        self.nursery = nursery
        self._conversation = conversation
        self._sending = sending
        self._hang_up = hang_up
        self._max_message = max_message
        self._open = True  # after a closing frame nothing is sent or read
        self._partial: Connection | None = None  # while a message is half read
        self._pieces: WebsocketBuffer | None = None
        self._share = BodyShare(bodies)  # of the pieces, and of the message while it is handled
        self._budget: FrameBudget | None = None  # of pings and fragments, which most clients never send
        self._unanswered = 0  # pings since the client last said something
        self._reading = False  # the reader handles what it has read, and may not see an answer

    def begin(self) -> None:
        self.ping()
        self._conversation.begin(self)

    def leave(self) -> None:
        """The client is gone, or soon will be. Called outside any task."""
        self._open = False
        self._partial = self._pieces = None
        self._share.release()
        self._conversation.end()

    def close(self, code: int) -> None:
        """Outside any task."""
        if self._open:
            self.leave()
            self.nursery.start_soon(self._say_close, CloseConnection(code))

    def ping(self) -> None:
        """Outside any task."""
        if self._unanswered > UNANSWERED_PINGS and not self._reading and self._open:
            self.leave()
            self.nursery.start_soon(self._hang_up)
        if self._open:
            self._unanswered += 1
            written = self._sending.write_now(PING)
            if written == "part":
                self.nursery.start_soon(self.finish)
            elif written == "nothing" and not self._sending.waits:  # it does not read: this send has its timeout
                self.nursery.start_soon(self._send_ping)

    async def _send_ping(self) -> None:
        if self._open:  # check again: a closing frame may have come before this task ran
            await self._sending.send(PING)
        else:
            await trio.lowlevel.checkpoint()

    def write_now(self, text: bytes) -> Written:
        return self._sending.write_now(text_frame(text)) if self._open else "nothing"

    async def finish(self) -> None:
        await self._sending.finish()

    async def send(self, text: bytes) -> None:
        if self._open:
            await self._sending.send(text_frame(text))
        else:
            await trio.lowlevel.checkpoint()

    async def handle(self, event: Event) -> None:
        """Handle what the connection has read, or the end of the client."""
        if isinstance(event, Closed):
            self.leave()
        elif isinstance(event, RawData) and self._open:
            self._reading = True
            try:
                await self._read(event.data)
            except Exception as error:  # our bug
                unexpected(error)
                self.close(CloseReason.INTERNAL_ERROR)
            self._reading, self._unanswered = False, 0

    async def _read(self, data: bytes) -> None:
        parser = self._partial or Connection(ConnectionType.SERVER)
        parser.receive_data(data)
        if self._budget is not None:
            self._budget.earn(len(data) / USEFUL_BYTES)
        for event in parser.events():
            if _is_small(event) and not self._pay():
                self.close(CloseReason.POLICY_VIOLATION)
                return
            if isinstance(event, TextMessage | BytesMessage):
                message = self._whole(event)
                if message is not None:
                    await self._conversation.receive(message)
                    self._share.release()
            elif isinstance(event, Ping):
                await self._sending.send(bytes(parser.send(event.response())))
            elif isinstance(event, CloseConnection):  # from the client, or our answer to a malformed frame
                self.leave()
                await self._say_close(event)
            await trio.lowlevel.checkpoint()  # a packet may hold thousands of messages
            if not self._open:  # checked last: after its end a conversation gets no messages
                return
        self._partial = parser if _has_begun(parser) else None

    def _whole(self, event: TextMessage | BytesMessage) -> str | bytes | None:
        """The complete message if this event ends one, else None."""
        most = UNTRUSTED_BYTES if self._conversation.tenant is None else self._max_message
        if event.message_finished and self._pieces is None and len(event.data) <= most:
            return event.data if isinstance(event.data, str) else bytes(event.data)
        if self._pieces is None:
            self._pieces = WebsocketBuffer(most)
        try:
            self._pieces.extend(event)  # pyright: ignore  untyped in hypercorn
        except FrameTooLargeError:
            self.close(CloseReason.MESSAGE_TOO_BIG)
            return None
        if not self._share.grow(len(event.data), self._conversation.tenant or ""):
            self.close(TRY_AGAIN_LATER)
            return None
        if not event.message_finished:
            return None
        whole, self._pieces = cast("dict[str, Any]", self._pieces.to_message()), None  # pyright: ignore  untyped in hypercorn
        text: str | None = whole["text"]
        binary: bytes = whole["bytes"]
        return binary if text is None else text

    def _pay(self) -> bool:
        if self._budget is None:
            self._budget = FrameBudget()
        return self._budget.spend(1)

    async def _say_close(self, event: CloseConnection) -> None:
        await self._sending.send(bytes(Connection(ConnectionType.SERVER).send(event)))
        await self._hang_up()


def _is_small(event: SocketEvent) -> bool:
    """Whether it is a frame that brings no message: a ping, a pong, a fragment."""
    if isinstance(event, TextMessage | BytesMessage):
        return event.frame_finished and not event.message_finished
    return isinstance(event, Ping | Pong)


def _has_begun(parser: Connection) -> bool:
    """Whether it holds part of a frame or message. Reads wsproto's private state; its version is pinned."""
    protocol = parser._proto  # pyright: ignore[reportPrivateUsage]  # no public way
    frames, messages = protocol._frame_decoder, protocol._message_decoder  # pyright: ignore[reportPrivateUsage]  # as above
    return bool(len(frames.buffer) or frames.header is not None or messages.opcode is not None)
