"""A transport: Triolet's WebSocket `/v1/stream`, with many requests on each of a few sockets.

A socket's reader handles every frame itself, so that a token costs no task switch. A request's task sleeps until its
end. A cancelling client sends `cancel`, and a slow reader grants `credit` token by token, both on a socket shared
with others.
"""

from itertools import count
from typing import Final, assert_never

import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, connect_websocket_url

from triolet.protocol.errors import REGISTRY, ErrorDetail
from triolet.protocol.stream_frames import (
    AcceptedFrame,
    CancelFrame,
    ClientFrame,
    Create,
    CreditFrame,
    ErrorFrame,
    ExplanationFrame,
    FailedFrame,
    FinishedFrame,
    PromptFrame,
    StartedFrame,
    StatusFrame,
    ToClient,
    TokenFrame,
)

from ..client.dial import Endpoint
from ..client.ending import Fault, outcome_of_status
from .exchange import LoadExchange, LoadRequest

LARGEST_MESSAGE: Final = 16 * 1024 * 1024

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder[ToClient](ToClient).decode


class _Running:
    """One request on a socket. `wake` is set when its task has something to do."""

    __slots__ = ("ask", "ended", "exchange", "fault", "wake")

    def __init__(self, ask: LoadRequest, exchange: LoadExchange) -> None:
        self.ask = ask
        self.exchange = exchange
        self.fault: Fault | None = None
        self.ended = False
        self.wake = trio.Event()

    def end(self, fault: Fault | None = None) -> None:
        if not self.ended:
            self.ended, self.fault = True, fault
            self.wake.set()


class _Socket:
    def __init__(self) -> None:
        self.ready = trio.Event()
        self.connection: WebSocketConnection | None = None
        self.fault: Fault | None = None
        self.places = 0  # requests on this socket
        self.running: dict[str, _Running] = {}

    def close_with(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        for running in list(self.running.values()):
            running.end(fault)
        self.ready.set()

    async def send(self, frame: ClientFrame) -> None:
        assert self.connection is not None
        try:
            await self.connection.send_message(_encode(frame).decode())
        except ConnectionClosed as error:
            raise Fault("reset", f"the socket was closed: {_closed(error)}") from error

    async def read(self) -> None:
        """Handle every frame until the socket ends."""
        assert self.connection is not None
        try:
            while True:
                data = await self.connection.get_message()
                try:
                    self._take(_decode(data), trio.current_time())
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    self.close_with(Fault("malformed", f"a frame: {error}"))
                    return
        except ConnectionClosed as error:
            self.close_with(Fault("reset", f"the socket was closed: {_closed(error)}"))

    def _take(self, frame: ToClient, now: float) -> None:
        if isinstance(frame, ErrorFrame):
            self.close_with(_fault_of(frame.error, before_text=True))
            return
        if isinstance(frame, StatusFrame):
            return  # of the engine; what it means for a request shows in its own frames
        running = self.running.get(frame.id)
        if running is None:
            return  # the end of a given-up request
        exchange = running.exchange
        match frame:
            case TokenFrame():
                exchange.arrivals.append(now)
                if exchange.counts is None:
                    exchange.counts = []
                exchange.counts.append(frame.tokens)
                if running.ask.keep_text:
                    exchange.texts.append(frame.text)
                if running.ask.cancel_after is not None and len(exchange.arrivals) >= running.ask.cancel_after:
                    running.wake.set()
            case StartedFrame():
                exchange.head, exchange.status = now, 101
            case FinishedFrame():
                exchange.finish = frame.reason
                exchange.prompt_tokens = frame.usage.prompt_tokens
                exchange.output_tokens = frame.usage.completion_tokens
                exchange.cached_tokens = frame.usage.prompt_tokens_details.cached_tokens
                running.end()
            case FailedFrame():
                running.end(_fault_of(frame.error, before_text=not exchange.arrivals))
            case AcceptedFrame() | ExplanationFrame() | PromptFrame():
                pass  # never requested
            case _:
                assert_never(frame)


class WebSocketTransport:
    """At most `streams_per_socket` requests per socket; each tenant has its own sockets. `nursery` runs the readers."""

    def __init__(self, address: Endpoint, nursery: trio.Nursery, streams_per_socket: int) -> None:
        self._url = f"{'wss' if address.secure else 'ws'}://{address.authority}{address.path}/stream"
        self._nursery = nursery
        self._most = streams_per_socket
        self._sockets: dict[str | None, list[_Socket]] = {}
        self._numbers = count()

    async def perform(self, ask: LoadRequest, exchange: LoadExchange) -> None:
        sockets = self._sockets.setdefault(ask.key, [])
        sockets[:] = [each for each in sockets if each.fault is None]
        socket = next((each for each in sockets if each.places < self._most), None)
        exchange.reused = socket is not None
        if socket is None:
            socket = _Socket()
            sockets.append(socket)
            socket.places += 1
            await self._open(socket, ask.key)
        else:
            socket.places += 1
        try:
            await socket.ready.wait()
            if socket.fault is not None:
                raise Fault(socket.fault.outcome, socket.fault.detail)
            await self._run(socket, ask, exchange)
        finally:
            socket.places -= 1

    async def _open(self, socket: _Socket, key: str | None) -> None:
        headers = [(b"Authorization", f"Bearer {key}".encode())] if key is not None else []
        try:
            socket.connection = await connect_websocket_url(
                self._nursery, self._url, extra_headers=headers, max_message_size=LARGEST_MESSAGE
            )
        except (HandshakeError, OSError) as error:
            socket.close_with(Fault("connect", f"{self._url}: {error or type(error).__name__}"))
        except trio.Cancelled:
            socket.close_with(Fault("connect", f"{self._url}: given up"))
            raise
        else:
            self._nursery.start_soon(socket.read)
            socket.ready.set()

    async def _run(self, socket: _Socket, ask: LoadRequest, exchange: LoadExchange) -> None:
        name = f"r{next(self._numbers)}"
        running = _Running(ask, exchange)
        socket.running[name] = running
        complete = False
        try:
            rate = ask.pieces_per_second
            await socket.send(Create(id=name, request=msgspec.Raw(ask.body), credit=None if rate is None else 1))
            exchange.sent = trio.current_time()
            if rate is not None:
                await self._grant_slowly(socket, name, running, rate)
            await running.wake.wait()
            complete = running.ended
            if not complete:
                raise Fault("cancelled", "")
            if running.fault is not None:
                raise running.fault
        finally:
            del socket.running[name]
            if not complete and socket.fault is None and exchange.sent is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                    await self._cancel(socket, name)

    async def _grant_slowly(self, socket: _Socket, name: str, running: _Running, rate: float) -> None:
        while not running.wake.is_set():
            with trio.move_on_after(1 / rate):
                await running.wake.wait()
                return
            await socket.send(CreditFrame(id=name, tokens=1))

    async def _cancel(self, socket: _Socket, name: str) -> None:
        try:
            await socket.send(CancelFrame(id=name))
        except Fault as fault:
            socket.close_with(fault)

    async def close(self) -> None:
        for socket in (each for sockets in self._sockets.values() for each in sockets):
            if socket.connection is not None:
                with trio.move_on_after(1.0):
                    await socket.connection.aclose()


def _fault_of(error: ErrorDetail, *, before_text: bool) -> Fault:
    detail = f"{error.message} ({error.code})"
    status = next((kind.status for code, kind in REGISTRY.items() if code == error.code), 500)
    return Fault(outcome_of_status(status) if before_text else "stream_error", detail, status)


def _closed(error: ConnectionClosed) -> str:
    reason = error.reason
    return "without a reason" if reason is None else f"{reason.code} {reason.name}"
