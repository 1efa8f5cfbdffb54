"""Where a server is, and connections to it: trio streams over TCP, with TLS for https."""

import socket
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from .ending import Fault

SLOW_RECEIVE_BUFFER: Final = 4096  # for a slow reader: bytes buffered by the kernel are not read slowly


class Endpoint(Struct, frozen=True, kw_only=True):
    """A server's address. `path` is put before every requested path."""

    host: str
    port: int
    secure: bool
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def read_url(url: str, path: str = "/v1") -> Endpoint:
    """Parse `http://127.0.0.1:8000`, with or without a path; `path` is the default. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000 or https://host/v1")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    return Endpoint(host=parts.hostname, port=port, secure=secure, path=parts.path.rstrip("/") or path)


class Found(NamedTuple):
    family: socket.AddressFamily
    address: tuple[Any, ...]  # Any: from getaddrinfo, its shape depends on the family


class Dialer:
    """Opens connections to one address. Its name is resolved once; the first of its addresses that answers is kept."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._context = (context or ssl.create_default_context()) if endpoint.secure else None
        self._found: list[Found] = []

    async def connect(self, slow: bool) -> trio.abc.Stream:
        """`slow`: keep the kernel from reading ahead for a slow reader. Raises Fault."""
        try:
            stream = await self._reach(slow)
            if self._context is None:
                return stream
            try:
                secure = trio.SSLStream(
                    stream, self._context, server_hostname=self._endpoint.host, https_compatible=True
                )
                await secure.do_handshake()
                return secure
            except BaseException:
                stream.socket.close()
                raise
        except (OSError, trio.BrokenResourceError) as error:
            reason = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
            raise Fault("connect", f"{self._endpoint.authority}: {reason}") from error

    async def _reach(self, slow: bool) -> trio.SocketStream:
        """Try each address in turn: `localhost` may be ::1 first, with a server on 127.0.0.1 alone."""
        failure: OSError | None = None
        for found in self._found or await self._resolve():
            try:
                stream = await reach_one(found, slow)
            except OSError as error:
                failure = error
            else:
                self._found = [found]
                return stream
        raise failure or OSError("the name has no address")

    async def _resolve(self) -> list[Found]:
        found = await trio.socket.getaddrinfo(self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM)
        self._found = [Found(each[0], each[4]) for each in found]
        return self._found


async def reach_one(found: Found, slow: bool) -> trio.SocketStream:
    connection = trio.socket.socket(found.family)
    try:
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER)
        await connection.connect(found.address)
        return trio.SocketStream(connection)
    except BaseException:
        connection.close()
        raise
