"""A connection as the HTTP client needs it: send, receive, look whether it still stands, close.

`SocketWire` reads a plain TCP socket without trio's stream on top: one wait and one `recv` for whatever came, where a
SocketStream tries `recv` before it waits. `StreamWire` is any trio stream: TLS, and in tests a pair in memory.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from .exchange import Fault
from .intake import RECEIVE_BYTES, Intake, Take

SLOW_RECEIVE_BUFFER = 4096  # a slow reader's: what the kernel would take for it is not read slowly

Connect = Callable[[bool], Awaitable["Wire"]]  # the argument: whether the reader is slow


class Address(Struct, frozen=True, kw_only=True):
    """Where a server is. `path` comes before `/chat/completions`."""

    host: str
    port: int
    secure: bool
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def read_url(url: str) -> Address:
    """`http://127.0.0.1:8000`, with or without a path; without one it is `/v1`. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000 or https://host/v1")
    secure = parts.scheme == "https"
    path = parts.path.rstrip("/") or "/v1"
    return Address(host=parts.hostname, port=parts.port or (443 if secure else 80), secure=secure, path=path)


class _Found(NamedTuple):
    family: socket.AddressFamily
    address: tuple[Any, ...]  # Any: what getaddrinfo says, which each family has in its own shape


class Wire(Protocol):
    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """What came, or b"" at the end."""
        ...

    async def follow(self, take: Take) -> None:
        """Call `take` with whatever comes (b"" at the end) until it returns True. What it raises is raised here."""
        ...

    def stands(self) -> bool:
        """Whether an idle connection can take another request, as far as can be seen from here."""
        ...

    async def close(self) -> None: ...


class SocketWire:
    def __init__(self, connection: socket.socket, intake: Intake) -> None:
        self._socket = connection
        self._intake = intake

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue  # woken for nothing

    async def follow(self, take: Take) -> None:
        await self._intake.follow(self._socket, take)

    def stands(self) -> bool:
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or it speaks out of turn

    async def close(self) -> None:
        self._socket.close()


class StreamWire:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._closed = False

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    async def follow(self, take: Take) -> None:
        while not take(await self.receive()):
            pass

    def stands(self) -> bool:
        return not self._closed

    async def close(self) -> None:
        self._closed = True
        await trio.aclose_forcefully(self._stream)


class Dialer:
    """Opens connections to one address; its name is resolved once. `intake.run` must run beside them."""

    def __init__(self, address: Address, intake: Intake, context: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._intake = intake
        self._context = (context or ssl.create_default_context()) if address.secure else None
        self._found: _Found | None = None

    async def connect(self, slow: bool) -> Wire:
        try:
            family, address = self._found or await self._resolve()
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                if slow:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER)
                connection.setblocking(False)
                wrapped = trio.socket.from_stdlib_socket(connection)
                await wrapped.connect(address)
                if self._context is None:
                    return SocketWire(connection, self._intake)
                secure = trio.SSLStream(
                    trio.SocketStream(wrapped),
                    self._context,
                    server_hostname=self._address.host,
                    https_compatible=True,
                )
                await secure.do_handshake()
                return StreamWire(secure)
            except BaseException:
                connection.close()
                raise
        except (OSError, trio.BrokenResourceError) as error:
            reason = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
            raise Fault("connect", f"{self._address.authority}: {reason}") from error

    async def _resolve(self) -> _Found:
        found = await trio.socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
        self._found = _Found(found[0][0], found[0][4])
        return self._found
