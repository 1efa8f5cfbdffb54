"""The sockets of an operating system, in memory: what the transport asks of a kernel, with seeded short writes.

It stands where the transport says `os.read`, `os.write`, `trio.lowlevel.wait_readable` and `select.poll`, so all code
above a descriptor is the real one. As in a real kernel, a buffer has room for so much and no more, a write may take
only a part, a closed descriptor's number is given to the next connection, and who closes with bytes unread resets.
"""

import heapq
import random
import socket
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from triolet.web import timers
from triolet.web.timers import PEER_HUNG_UP
from triolet.web.transport import receiving, sending, transport

SHORT_WRITES = 0.05
FIRST_FILE = 1_000_000  # no descriptor of this process has such a number: what is asked of a real one fails


class Pipe:
    """One direction of a connection."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.data = bytearray()
        self.ended = False  # the writer will write no more
        self.gone = False  # the reader will read no more
        self.reset = False
        self.woken = False
        self.readable = trio.lowlevel.ParkingLot()
        self.writable = trio.lowlevel.ParkingLot()

    @property
    def says_something(self) -> bool:
        return bool(self.data) or self.ended or self.reset

    def write(self, data: bytes | bytearray | memoryview, most: int) -> int:
        if self.gone or self.ended:
            raise BrokenPipeError
        taken = min(self.room - len(self.data), most, len(data))
        if taken <= 0 < len(data):
            raise BlockingIOError
        self.data += data[:taken]
        self.wake_reader()
        return taken

    def read(self, most: int) -> bytes:
        if self.data:
            piece = bytes(self.data[:most])
            del self.data[:most]
            self.writable.unpark_all()
            return piece
        if self.reset:
            raise ConnectionResetError
        if self.ended:
            return b""
        raise BlockingIOError

    def end(self, *, reset: bool = False) -> None:
        self.ended = True
        self.reset |= reset
        self.wake_reader()

    def leave(self) -> None:
        self.gone = True
        self.writable.unpark_all()

    def wake_reader(self) -> None:
        self.woken = True
        self.readable.unpark_all()


class PipeStream(trio.abc.AsyncResource):
    """One end of a pair of pipes without a bound, as a stream: a socket pair whose peers always read."""

    def __init__(self, inbound: Pipe, outbound: Pipe) -> None:
        self._inbound, self._outbound = inbound, outbound

    async def send_all(self, data: bytes | bytearray) -> None:
        try:
            self._outbound.write(data, len(data))
        except BrokenPipeError as error:
            raise trio.BrokenResourceError from error

    async def receive_some(self, most: int) -> bytes:
        while not self._inbound.says_something:
            await self._inbound.readable.park()
        return self._inbound.read(most)

    async def aclose(self) -> None:
        self._outbound.end()
        self._inbound.leave()
        self._inbound.end()  # for whoever reads here
        await trio.lowlevel.checkpoint()


def stream_pair() -> tuple[PipeStream, PipeStream]:
    one, other = Pipe(1 << 30), Pipe(1 << 30)
    return PipeStream(one, other), PipeStream(other, one)


class ServerSocket:
    """The server's end, as trio's socket: only what the transport uses."""

    family = socket.AF_INET

    def __init__(self, kernel: "Kernel", file: int, inbound: Pipe, outbound: Pipe, address: tuple[str, int]) -> None:
        self.inbound, self.outbound = inbound, outbound
        self.closed = False
        self._kernel = kernel
        self._file = file
        self._address = address

    def fileno(self) -> int:
        return -1 if self.closed else self._file

    def getpeername(self) -> tuple[str, int]:
        return self._address

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 80

    async def send(self, data: bytes | memoryview) -> int:
        """How much was taken. Raises as trio's socket does."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise trio.ClosedResourceError
            try:
                return self._kernel.write(self.fileno(), memoryview(data))
            except BlockingIOError:
                await self.outbound.writable.park()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._kernel.forget(self._file)
            self.outbound.end(reset=bool(self.inbound.data))
            self.inbound.leave()
            self.inbound.readable.unpark_all()
            self.outbound.writable.unpark_all()


class ServerStream:
    """The server's end, as trio's stream."""

    def __init__(self, kernel: "Kernel", sock: ServerSocket) -> None:
        self.socket = sock
        self._kernel = kernel

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As of any socket."""

    async def send_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[await self.socket.send(left) :]
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.socket.closed:
            raise trio.ClosedResourceError
        self.socket.outbound.end()

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class ClientSocket:
    """The client's end. It ends as sockets do: `receive` returns b"" or raises ConnectionResetError."""

    def __init__(self, inbound: Pipe, outbound: Pipe) -> None:
        self._inbound, self._outbound = inbound, outbound

    async def send(self, data: bytes) -> None:
        """Raises BrokenPipeError if the server has closed."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._outbound.write(left, len(left)) :]
            except BlockingIOError:
                await self._outbound.writable.park()
        await trio.lowlevel.checkpoint()

    async def receive(self, most: int = 65_536) -> bytes:
        while not self._inbound.says_something:
            await self._inbound.readable.park()
        return self._inbound.read(most)

    def end(self) -> None:
        """Say nothing more, and go on reading."""
        self._outbound.end()

    def close(self) -> None:
        """Leave. What the server writes from now on fails."""
        self._outbound.end(reset=bool(self._inbound.data))
        self._inbound.leave()


class _Listening:
    family = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 80


class Listener:
    socket = _Listening()

    def __init__(self) -> None:
        self.queue = deque[ServerStream]()
        self.arrived = trio.lowlevel.ParkingLot()
        self.closed = False

    async def accept(self) -> ServerStream:
        await trio.lowlevel.checkpoint()
        while not self.queue:
            await self.arrived.park()
        return self.queue.popleft()

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.closed = True
        while self.queue:  # connected and never accepted
            self.queue.popleft().socket.close()
        await trio.lowlevel.checkpoint()


class _Poll:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._files: list[int] = []

    def register(self, file: int, mask: int) -> None:
        assert mask == PEER_HUNG_UP
        self._files.append(file)

    def poll(self, milliseconds: int) -> Iterator[tuple[int, int]]:
        assert milliseconds == 0
        ended = [file for file in sorted(self._files) if self._kernel.open[file].inbound.ended]
        return iter([(file, PEER_HUNG_UP) for file in ended])


def as_it_is(listener: Listener) -> Listener:
    """In the place of what makes a listener of a socket."""
    return listener


class Kernel:
    """All sockets of one life. `read`, `write` and `poll` are those of `os` and `select`."""

    def __init__(self, rng: random.Random) -> None:
        self.listener = Listener()
        self.open: dict[int, ServerSocket] = {}
        self._rng = rng
        self._free = [FIRST_FILE]

    def connect(self, address: tuple[str, int], *, room: int, window: int) -> ClientSocket:
        """`room` is what the server may have written and the client not read, `window` the other way round."""
        if self.listener.closed:
            raise ConnectionRefusedError
        inbound, outbound = Pipe(window), Pipe(room)
        file = heapq.heappop(self._free)  # the lowest one, as kernels do
        if not self._free:
            self._free.append(file + 1)
        self.open[file] = ServerSocket(self, file, inbound, outbound, address)
        self.listener.queue.append(ServerStream(self, self.open[file]))
        self.listener.arrived.unpark()
        return ClientSocket(outbound, inbound)

    def forget(self, file: int) -> None:
        del self.open[file]
        heapq.heappush(self._free, file)

    def write(self, file: int, data: bytes | memoryview) -> int:
        short = len(data) > 1 and self._rng.random() < SHORT_WRITES
        return self._socket(file).outbound.write(data, self._rng.randrange(1, len(data)) if short else len(data))

    def read(self, file: int, most: int) -> bytes:
        return self._socket(file).inbound.read(most)

    def poll(self) -> _Poll:
        return _Poll(self)

    async def wait_readable(self, file: int) -> None:
        sock = self._socket(file)
        pipe = sock.inbound
        if pipe.says_something:
            await trio.lowlevel.checkpoint()
            return
        pipe.woken = False
        await pipe.readable.park()
        if not pipe.woken:  # it was closed
            raise trio.ClosedResourceError

    def _socket(self, file: int) -> ServerSocket:
        if (sock := self.open.get(file)) is None:
            raise OSError(9, "Bad file descriptor")
        return sock

    @contextmanager
    def in_place(self) -> Generator[None]:
        """The transport's kernel, within the block."""
        with (
            patch.object(sending, "os", self),
            patch.object(receiving, "os", self),
            patch.object(timers, "select", self),
            patch.object(trio.lowlevel, "wait_readable", self.wait_readable),
            patch.object(transport, "_listener", as_it_is),
        ):
            yield
