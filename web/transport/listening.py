"""Sockets to listen on: TCP ports, optionally shared by several processes, and a Unix socket in the file system.

Anyone who can open a Unix socket's file can use the server. So it is created for its owner only (0600), before anyone
can connect. A file left by a dead server is replaced; one in use is not.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import trio

BACKLOG = 1024  # connections the kernel queues while one step of the event loop runs
OWNER_ONLY = 0o600


def bind_tcp(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """A bound socket for every address of `host`, not listening yet. If `port` is 0, all share one free port.

    `shared`: other processes of this user may bind it too (SO_REUSEPORT). The kernel spreads connections over all
    listeners.
    """
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], bound[0].getsockname()[1] if port == 0 and len(bound) > 1 else port, *address[2:]))
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


@contextmanager
def unix_socket(path: str) -> Generator[socket.socket]:
    """A listening socket at `path`; its file is removed after the block. Raises OSError if that fails."""
    with made_unix_socket(path) as sock, removed_afterwards(path):
        yield sock


@contextmanager
def removed_afterwards(path: str, unless: Callable[[], bool] = lambda: False) -> Generator[None]:
    """Remove the file of a socket after the block."""
    made = os.stat(path).st_ino
    try:
        yield
    finally:
        with suppress(OSError):
            if os.stat(path).st_ino == made and not unless():  # not a file of another server that replaced it
                os.unlink(path)


@contextmanager
def made_unix_socket(path: str) -> Generator[socket.socket]:
    """The same, and the file stays."""
    refuse_used_path(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        os.chmod(path, OWNER_ONLY)  # before it listens, so nobody has connected
        sock.listen(BACKLOG)
        yield sock


def refuse_used_path(path: str) -> None:
    """Raises OSError unless `path` is free or belongs to a server that is gone."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)  # on a full queue, which means someone listens
        with suppress(ConnectionRefusedError):
            with suppress(BlockingIOError, TimeoutError):
                probe.connect(path)
            raise OSError(errno.EADDRINUSE, "another server listens there", path)


def urls_of(sockets: "Iterable[socket.socket | trio.socket.SocketType]", *, secure: bool) -> list[str]:
    """The URLs at which clients reach these sockets."""
    return [url_of(sock.family, sock.getsockname(), secure=secure) for sock in sockets]


def url_of(family: int, address: Any, *, secure: bool) -> str:  # Any: depends on the family
    """The URL at which clients reach this socket."""
    if family == socket.AF_UNIX:
        return f"unix:{quote(os.path.abspath(address))}"
    scheme = "https" if secure else "http"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
