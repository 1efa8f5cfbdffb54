"""A WebSocket after its handshake, past the application: the connection's protocol from then on.

An open socket is mostly idle, and there are thousands. So nothing of HTTP is kept, the connection's reader hands
messages to the conversation itself, and wsproto's parser is there only while a message is half read: between two
messages it has no state. A client sees what it sees of wsproto_websocket.py: the same answers to malformed frames,
endless messages, pings and closing.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.ws_stream import FrameTooLargeError, Handshake, WebsocketBuffer
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from ..conversation import Conversation, Headers, Opener, Wire
from ..errors import unexpected
from .direct import FRAME_HEADS, DirectWriter, Written, text_frame
from .sending import Sending

SOCKETS: Final = "triolet.sockets"  # in the state of a connection: its Sockets
PING: Final = b"\x89\x00"  # without a payload, as hypercorn's


class Sockets(NamedTuple):
    """By path what may be opened past the application, and how: from then on HTTP is over."""

    openers: Mapping[bytes, Opener]
    open: Callable[[Conversation], None]


def is_decoded(name: bytes) -> bool:
    """Whether hypercorn decodes this header of a handshake, as ASCII."""
    return name == b"connection" or name.startswith(b"sec-websocket-")


def handshake_answer(version: bytes, headers: Headers) -> list[tuple[bytes, bytes]] | None:
    """The headers of the 101; None for a handshake that is not valid."""
    if not all(value.isascii() for name, value in headers if is_decoded(name)):
        return None
    wanted = [(name, value) for name, value in headers if name != b"sec-websocket-extensions"]
    handshake = Handshake(wanted, version.decode())
    return handshake.accept(None, [])[1] if handshake.is_valid() else None


class OpenSocket:
    """`hang_up` ends the connection, once nothing more is to be sent."""

    __slots__ = ("_conversation", "_hang_up", "_max_message", "_nursery", "_open", "_partial", "_pieces", "_sending")

    def __init__(
        self,
        conversation: Conversation,
        sending: Sending,
        nursery: trio.Nursery,
        hang_up: Callable[[], Awaitable[None]],
        max_message: int,
    ) -> None:
        self._conversation = conversation
        self._sending = sending
        self._nursery = nursery
        self._hang_up = hang_up
        self._max_message = max_message
        self._open = True  # nothing is sent after a closing frame, nor read
        self._partial: Connection | None = None  # while a message is half read
        self._pieces: WebsocketBuffer | None = None

    def begin(self) -> None:
        self.ping()
        wire = Wire(self._nursery, self._send, DirectWriter(self._write, self._sending.finish), self.close)
        self._conversation.begin(wire)

    def leave(self) -> None:
        """The client is gone, or will be: outside any task."""
        self._open = False
        self._partial = self._pieces = None
        self._conversation.end()

    def close(self, code: int) -> None:
        """Outside any task."""
        if self._open:
            self.leave()
            self._nursery.start_soon(self._say_close, CloseConnection(code))

    def ping(self) -> None:
        """Outside any task."""
        if self._open:
            written = self._sending.write_now(PING)
            if written == "part":
                self._nursery.start_soon(self._sending.finish)
            elif written == "nothing":  # a client that does not read: this send finds out for how long
                self._nursery.start_soon(self._send_ping)

    async def _send_ping(self) -> None:
        if self._open:  # still: a closing frame may have come before this task
            await self._sending.send(PING)
        else:
            await trio.lowlevel.checkpoint()

    def _write(self, text: bytes) -> Written:
        if not self._open:
            return "nothing"
        # What `text_frame` does: its call would cost 0.05 of the 2 µs from a token's id to its socket.
        short = len(text) < len(FRAME_HEADS)
        return self._sending.write_now(FRAME_HEADS[len(text)] + text if short else text_frame(text))

    async def _send(self, text: str) -> None:
        if self._open:
            await self._sending.send(text_frame(text.encode()))
        else:
            await trio.lowlevel.checkpoint()

    async def handle(self, event: Event) -> None:
        """What the connection has read, or that its client is gone."""
        if isinstance(event, Closed):
            self.leave()
        elif isinstance(event, RawData) and self._open:
            try:
                await self._read(event.data)
            except Exception as error:  # a bug of ours
                unexpected(error)
                self.close(CloseReason.INTERNAL_ERROR)

    async def _read(self, data: bytes) -> None:
        parser = self._partial or Connection(ConnectionType.SERVER)
        parser.receive_data(data)
        for event in parser.events():
            if isinstance(event, TextMessage | BytesMessage):
                message = self._whole(event)
                if message is not None:
                    await self._conversation.receive(message)
            elif isinstance(event, Ping):
                await self._sending.send(bytes(parser.send(event.response())))
            elif isinstance(event, CloseConnection):  # the client's, or what its malformed frame is answered with
                self.leave()
                await self._say_close(event)
            await trio.lowlevel.checkpoint()  # a packet may hold thousands of messages
            if not self._open:  # asked last: the conversation may have ended meanwhile, and hears nothing after that
                return
        self._partial = parser if _has_begun(parser) else None

    def _whole(self, event: TextMessage | BytesMessage) -> str | bytes | None:
        """The message that this is the end of."""
        if event.message_finished and self._pieces is None and len(event.data) <= self._max_message:
            return event.data if isinstance(event.data, str) else bytes(event.data)
        if self._pieces is None:
            self._pieces = WebsocketBuffer(self._max_message)
        try:
            self._pieces.extend(event)  # pyright: ignore  untyped in hypercorn
        except FrameTooLargeError:
            self.close(CloseReason.MESSAGE_TOO_BIG)
            return None
        if not event.message_finished:
            return None
        whole, self._pieces = cast("dict[str, Any]", self._pieces.to_message()), None  # pyright: ignore  untyped in hypercorn
        text: str | None = whole["text"]
        binary: bytes = whole["bytes"]
        return binary if text is None else text

    async def _say_close(self, event: CloseConnection) -> None:
        await self._sending.send(bytes(Connection(ConnectionType.SERVER).send(event)))
        await self._hang_up()


def _has_begun(parser: Connection) -> bool:
    """Whether it holds a part of a frame or of a message: asked of wsproto's privates, its version is pinned."""
    protocol = parser._proto  # pyright: ignore[reportPrivateUsage]
    frames, messages = protocol._frame_decoder, protocol._message_decoder  # pyright: ignore[reportPrivateUsage]
    return bool(len(frames.buffer) or frames.header is not None or messages.opcode is not None)
