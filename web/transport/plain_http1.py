"""Passes plain HTTP/1.1 requests straight to their handlers, without h11, hypercorn and Quart.

If a plain request (plain_head.py) arrives between requests, h11 never sees it, so its state does not change. All
other requests take the general path. Data after a plain request waits until it is answered. One task runs the
request; if the connection ends, for example because the client leaves, the task and its generation end too.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import time
from typing import Final, TypeVar
from wsgiref.handlers import format_date_time

import trio
from hypercorn.trio.task_group import TaskGroup

from ..arriving_body import ArrivingBody
from ..exchange import Content, GenerationRoutes, Handler, LastPiece, WriteChunk, fields_of
from ..large_json import decode_aside
from .http1 import GuardedHTTP1, status_line
from .plain_head import PlainHead, PlainHeaders, read_head
from .sending import Sending

T = TypeVar("T")

_LAST_CHUNK: Final = b"0\r\n\r\n"


class PlainExchange:
    """A plain request: its complete head, and its body as far as received."""

    def __init__(
        self, head: PlainHead, body: bytes, write_chunk: WriteChunk, routes: GenerationRoutes, address: str | None
    ) -> None:
        self.address = address
        self.method = "POST"
        self.args: tuple[str, ...] = ()
        self.generation: str | None = None
        self.on_leave: Callable[[], object] | None = None
        self.request_id = ""
        self.tenant = ""
        self.began = trio.current_time()
        self.status: int | None = None
        self.path = head.path
        self.headers: PlainHeaders = head.headers
        self.endpoint: str | None = head.path
        self.write_chunk: WriteChunk | None = write_chunk
        self.missing = head.content_length - len(body)  # bytes of the body still to come
        self._body = body  # all of it, if nothing is missing; else the beginning is in:
        self._arriving: ArrivingBody | None = None
        if self.missing:
            self._arriving = ArrivingBody(routes.bodies, routes.max_body_bytes)
            self._arriving.add(body, self.tenant)

    def take(self, data: bytes) -> bytes:
        """Add bytes from the connection; returns those that do not belong to this request."""
        piece = data[: self.missing]
        if piece and self._arriving is not None:
            self.missing -= len(piece)
            self._arriving.add(piece, self.tenant)
            if not self.missing:
                self._arriving.end()
        return data[len(piece) :]

    async def read_json(self, decode: Callable[[bytes], T]) -> T:
        if self._arriving is not None:
            return await self._arriving.read(decode, self.tenant)
        body, self._body = self._body, b""
        return await decode_aside(body, decode, self.tenant)

    def release_body(self) -> None:
        if self._arriving is not None:
            self._arriving.release()


class PlainHTTP1:
    """The plain requests of one connection, one after the other; `ordinary` handles all others.

    `update` is called with whether the connection is idle; `close` ends it once everything was sent.
    """

    def __init__(
        self,
        routes: GenerationRoutes,
        sending: Sending,
        tasks: TaskGroup,
        ordinary: GuardedHTTP1,
        update: Callable[[bool], None],
        close: Callable[[], Awaitable[None]],
        address: str | None,
    ) -> None:
        self._address = address
        self._routes = routes
        self._sending = sending
        self._tasks = tasks
        self._ordinary = ordinary
        self._update = update
        self._close = close
        self._exchange: PlainExchange | None = None
        self._answered: trio.Event | None = None  # later data from the client waits for it

    @property
    def busy(self) -> bool:
        return self._exchange is not None

    def take(self, data: bytes) -> bytes:
        """Take bytes from the client without waiting; returns those that must wait or are not plain."""
        if self._exchange is not None:
            return self._exchange.take(data)
        routes = self._routes
        head = read_head(data)
        if head is None or head.content_length > routes.max_body_bytes:
            return data
        handler = routes.handlers.get(head.path)
        if handler is None or not self._ordinary.begin_plain():
            return data
        self._update(False)
        end = head.size + head.content_length
        self._exchange = PlainExchange(head, data[head.size : end], self._sending.write_now, routes, self._address)
        self._tasks.spawn(self._run, self._exchange, handler)  # pyright: ignore  untyped in hypercorn
        return data[end:]

    def stall(self) -> None:
        if self._exchange is not None:
            self._routes.stall(self._exchange)

    async def wait_answered(self) -> None:
        while self._exchange is not None:
            self._answered = trio.Event()
            await self._answered.wait()

    async def _run(self, exchange: PlainExchange, handler: Handler) -> None:
        try:
            content = await self._routes.answer(exchange, handler)
            exchange.status = content.status
            last = exchange.missing > 0 or self._draining
            await self._send(content, exchange, last)
        finally:
            exchange.release_body()
            self._routes.end(exchange)
        self._exchange = None
        if self._answered is not None:
            self._answered.set()
        if last or self._draining:  # a stream may have begun before draining
            await self._close()
        else:
            self._update(True)

    @property
    def _draining(self) -> bool:
        return self._ordinary.context.terminated.is_set()

    async def _send(self, content: Content, exchange: PlainExchange, last: bool) -> None:
        """`last`: the connection will be closed, and the head announces it."""
        head = b"%b%b%b%b" % (
            status_line(content.status),
            b"".join([b"%b: %b\r\n" % field for field in fields_of(content, exchange)]),
            date_line(int(time())),
            b"Connection: close\r\n" if last else b"",
        )
        body = content.body
        if isinstance(body, bytes) and not isinstance(body, LastPiece):
            await self._write(b"%b\r\n%b" % (head, body))
            return
        head = b"%bTransfer-Encoding: chunked\r\n\r\n" % head
        if isinstance(body, bytes):
            await self._write(b"%b%x\r\n%b\r\n%b" % (head, len(body), body, _LAST_CHUNK))
        else:
            await self._stream(head, body)

    async def _stream(self, head: bytes, body: AsyncGenerator[bytes, None]) -> None:
        """The head is sent with the first piece, and the end with the last one, if marked as such."""
        async with aclosing(body):
            async for piece in body:
                assert piece, "an empty chunk would be the end"
                last = isinstance(piece, LastPiece)
                await self._write(b"%b%x\r\n%b\r\n%b" % (head, len(piece), piece, _LAST_CHUNK if last else b""))
                if last:
                    return
                head = b""
        await self._write(head + _LAST_CHUNK)

    async def _write(self, data: bytes) -> None:
        written = self._sending.write_now(data)
        if written == "nothing":
            await self._sending.send(data)
        elif written == "part":
            await self._sending.finish()


class _DateLine:
    """The field that hypercorn puts into every response, made once per second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def __call__(self, second: int) -> bytes:
        if second != self._second:
            self._second, self._line = second, b"date: %b\r\n" % format_date_time(second).encode()
        return self._line


date_line: Final = _DateLine()
