"""A client of /v1/dashboard, for the tests of servers of one web process and of several."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from triolet.protocol.engine_view import AboutEngine, DashboardError, ToDashboard, View

_FRAMES: Final = msgspec.json.Decoder[ToDashboard](ToDashboard)


def close_code(closed: ConnectionClosed) -> int:
    assert closed.reason is not None
    return closed.reason.code


class Watcher:
    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def hear(self) -> AboutEngine | View | DashboardError:
        frame: AboutEngine | View | DashboardError = _FRAMES.decode(await self.socket.get_message())
        return frame

    async def view(self) -> View:
        while not isinstance(frame := await self.hear(), View):
            assert isinstance(frame, AboutEngine), frame
        return frame

    async def end(self) -> tuple[str, int]:
        """The code of the error that is the last frame, and that of the close after it."""
        while not isinstance(error := await self.hear(), DashboardError):
            assert isinstance(error, AboutEngine), error
        with pytest.raises(ConnectionClosed) as closed:
            await self.hear()
        return error.error.code, close_code(closed.value)


@asynccontextmanager
async def watching(url: str, **headers: str) -> AsyncGenerator[Watcher, None]:
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    host = url.removeprefix("http://")
    async with (
        await trio.open_tcp_stream("127.0.0.1", int(host.split(":")[1])) as stream,
        trio.open_nursery() as nursery,
    ):
        socket = await wrap_client_stream(nursery, stream, host, "/v1/dashboard", extra_headers=extra)
        yield Watcher(socket)
        nursery.cancel_scope.cancel()  # leaves without a goodbye, as a browser may
