"""Thousands of readers whose sockets take no more, over HTTP/1.1, HTTP/2 and WebSocket, beside streams that are read.

The kernel keeps little for them: their receive buffers are as small as it allows. So what is not sent stays with the
server, which must bound it, end the answers after its time limits, and have all sockets closed.
"""

import json
import re
import socket
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..client.dial import SLOW_RECEIVE_BUFFER
from ..process import ServerProcess
from .held_streams import HTTP2_STREAMS, HeldHTTP2
from .paced import Paced, paced
from .requests import completion, create_frame, handshake
from .script import Script

NEIGHBOURS: Final = 16
GROUP: Final = 300  # that fill their sockets at once: while they do, they cost as much as streams that are read
# The server's, for a send and for an answer that nobody takes, and between two pings: all must be full before.
TIMEOUT: Final = 270.0
_PONG: Final = b"\x8a\x80\0\0\0\0"
_TOKENS: Final = 10_000  # so many that no answer ends by itself
_FILL_SECONDS: Final = 40.0  # limit for the server to fill the sockets of a group
_FREE_SECONDS: Final = 1.5 * TIMEOUT


class Stalled(Struct, frozen=True, kw_only=True):
    readers: int
    waiting: int  # answers that waited for their readers, at the most
    connections: int
    bytes_each: float  # of the server's process, at the most
    kernel_bytes_each: float  # in the buffers of all TCP sockets of this machine, both ends of a connection
    full_seconds: float  # until every answer waited for its reader
    quiet: Paced
    beside: Paced
    quiet_again: Paced
    freed_seconds: float | None  # from the last full socket until nothing was left; None: not within the patience
    left: dict[str, int]  # requests, owned blocks, descriptors and tasks beyond those before
    bytes_after: float  # that the process kept, for each reader


def stalled_readers(server: ServerProcess, script: Script, readers: int, seconds: float) -> Stalled:
    """The server's worker must keep the beat of paced.py."""
    quiet = paced(server, script, NEIGHBOURS, seconds)
    before, memory, kernel = _ledger(server.port), server.front_bytes(), _kernel_bytes()
    began = time.perf_counter()
    with ExitStack() as stack:
        connections, sockets = 0, list[socket.socket]()
        for first in range(0, readers, GROUP):
            connections += _open(server.port, first, min(GROUP, readers - first), stack, sockets)
            until = time.perf_counter() + _FILL_SECONDS
            while _waiting(server.port) < min(first + GROUP, readers) and time.perf_counter() < until:
                _rest(sockets)
        full = time.perf_counter()
        waiting = _waiting(server.port)
        most, held = server.front_bytes(), _kernel_bytes()
        beside = paced(server, script, NEIGHBOURS, seconds)
        most = max(most, server.front_bytes())
        left = _left(server.port, before)
        while any(left.values()) and time.perf_counter() - full < _FREE_SECONDS:
            _rest(sockets)
            left = _left(server.port, before)
        freed = time.perf_counter() - full
    return Stalled(
        readers=readers,
        waiting=waiting,
        connections=connections,
        bytes_each=(most - memory) / readers,
        kernel_bytes_each=(held - kernel) / readers,
        full_seconds=full - began,
        quiet=quiet,
        beside=beside,
        quiet_again=paced(server, script, NEIGHBOURS, seconds),
        freed_seconds=None if any(left.values()) else freed,
        left=left,
        bytes_after=(server.front_bytes() - memory) / readers,
    )


def _open(port: int, first: int, readers: int, stack: ExitStack, sockets: list[socket.socket]) -> int:
    """A third of the readers over each wire; nothing is read of any answer. Returns how many connections there are."""
    third = readers // 3
    for stream in range(first, first + third, HTTP2_STREAMS):
        stack.enter_context(HeldHTTP2(port, stream, min(HTTP2_STREAMS, first + third - stream)).socket)
    for stream in range(first + third, first + readers):
        sock = stack.enter_context(_dial(port))
        if stream < first + 2 * third:
            sock.sendall(handshake())
            sock.recv(SLOW_RECEIVE_BUFFER)
            sock.sendall(create_frame(stream, _TOKENS))
            sockets.append(sock)
        else:
            sock.sendall(completion(stream, _TOKENS))
    return readers - third + -(-third // HTTP2_STREAMS)


def _rest(sockets: list[socket.socket]) -> None:
    """A second. In every tenth the WebSockets say that they live: three pings without a word, and they are dead."""
    time.sleep(1.0)
    for sock in sockets if not int(time.monotonic()) % 10 else ():
        with suppress(OSError):  # closed by now
            sock.sendall(_PONG)


def _dial(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER)
    sock.connect(("127.0.0.1", port))
    return sock


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def _waiting(port: int) -> int:
    """Answers that wait for their readers; those whose KV blocks another took wait in the queue again."""
    found = re.findall(
        r'^triolet_requests_(?:parked|waiting_by_reason\{reason="credit"\}) (\S+)$', _get(port, "/metrics"), re.M
    )
    return int(sum(map(float, found)))


def _ledger(port: int) -> dict[str, int]:
    ledger = json.loads(_get(port, "/internal/ledger"))
    return {name: ledger[name] for name in ("requests", "fds", "tasks")} | {"blocks": ledger["kv_blocks"]["owned"]}


def _left(port: int, before: dict[str, int]) -> dict[str, int]:
    return {name: max(0, count - before[name]) for name, count in _ledger(port).items()}


def _kernel_bytes() -> int:
    """What the buffers of all TCP sockets hold; the kernel counts pages."""
    found = re.search(r"^TCP: .* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.M)
    return int(found[1]) * 4096 if found else 0
