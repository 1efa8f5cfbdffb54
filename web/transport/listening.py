"""Sockets to listen on: TCP ports, shared by several processes or not, and a Unix socket in the file system.

Whoever may open the file of a Unix socket may use the server: it is made for its owner alone (0600), before anybody
can connect. One that a dead server left behind is replaced, one that is listened on is not.
"""

import errno
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

BACKLOG = 1024  # connections the kernel holds for us while one step of the loop runs
OWNER_ONLY = 0o600


def bind_tcp(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """A bound socket for every address of `host`, not listening yet; all on one port where `port` is 0.

    `shared`: other processes of this user may bind it too (SO_REUSEPORT), and the kernel spreads connections over all
    that listen.
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
    """A listening socket at `path`; its file goes with the block. Raises OSError where that cannot be."""
    refuse_used_path(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        made = os.stat(path).st_ino
        try:
            os.chmod(path, OWNER_ONLY)  # nobody connects before it listens
            sock.listen(BACKLOG)
            yield sock
        finally:
            with suppress(OSError):
                if os.stat(path).st_ino == made:  # not another server's, which took its place
                    os.unlink(path)


def refuse_used_path(path: str) -> None:
    """Raises OSError unless `path` is free, or the socket of a server that is gone."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)  # a full queue: it is listened on
        with suppress(ConnectionRefusedError):
            with suppress(BlockingIOError, TimeoutError):
                probe.connect(path)
            raise OSError(errno.EADDRINUSE, "another server listens there", path)


def url_of(family: int, address: Any, *, secure: bool) -> str:  # Any: an address is what its family makes it
    """Where clients find a socket of that family at that address."""
    if family == socket.AF_UNIX:
        return f"unix:{quote(os.path.abspath(address))}"
    scheme = "https" if secure else "http"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
