"""The end of an open WebSocket is the end: its conversation hears no message after it, its client no ping."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypercorn.events import RawData
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage

from triolet.web.conversation import Wire
from triolet.web.transport.sending import Sending
from triolet.web.transport.websocket import OpenSocket

TRIES = 20  # trio runs two tasks of one tick in either order


class ClosingSoon:
    """Another task closes the socket that its first message came by."""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []

    def begin(self, wire: Wire) -> None:
        self._wire = wire

    async def receive(self, message: str | bytes) -> None:
        self.heard.append(message)
        self._wire.nursery.start_soon(self._close)  # runs while the socket looks for the next message, or just after

    def end(self) -> None:
        self.heard.append("the end")

    async def _close(self) -> None:
        self._wire.close(1001)


@pytest.fixture
def conversation() -> ClosingSoon:
    return ClosingSoon()


@asynccontextmanager
async def opened(conversation: ClosingSoon) -> AsyncGenerator[tuple[OpenSocket, trio.SocketStream]]:
    """The socket, and its client's stream, at whose end it is closed."""
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(sock)) for sock in socket.socketpair())
    sending = Sending(ours, 20.0, lambda: None, lambda: None)
    with trio.fail_after(20.0):
        async with ours, theirs, trio.open_nursery() as nursery:
            open_socket = OpenSocket(conversation, sending, nursery, ours.send_eof, 1000)
            open_socket.begin()
            yield open_socket, theirs


async def test_no_message_follows_the_end_that_another_task_makes(conversation: ClosingSoon) -> None:
    client = Connection(ConnectionType.CLIENT)
    data = client.send(TextMessage(data="a")) + client.send(TextMessage(data="b"))
    for _ in range(TRIES):
        async with opened(conversation) as (open_socket, _):
            await open_socket.handle(RawData(data))
        assert conversation.heard.pop() == "the end"
        assert "the end" not in conversation.heard
        conversation.heard.clear()


async def test_a_ping_that_waits_does_not_follow_the_closing_frame(conversation: ClosingSoon) -> None:
    async with opened(conversation) as (open_socket, stream):
        write = partial(open_socket._sending.write_now, b"\x82\x7e\x10\x00" + bytes(4096))
        while write() == "all":  # until the kernel takes no more
            pass
        open_socket.ping()
        open_socket.close(1001)
        received = b"".join([data async for data in stream])
    assert received.endswith(Connection(ConnectionType.SERVER).send(CloseConnection(code=1001)))
    assert received.count(b"\x89\x00") == 1  # the first one, as it was opened
