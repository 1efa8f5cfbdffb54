"""What runs over an open WebSocket, without tasks of its own, and what it speaks through.

Contract: the reader of the connection calls `begin` once, then `receive` for each whole message, one after the other,
and whoever ends the socket calls `end`, perhaps more than once. After `end` nothing is received.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import trio

from .transport.direct import DirectWriter


class Wire(NamedTuple):
    """`send` a text, the ordinary way; `direct`: the short one, where the server offers it.

    `nursery` ends with the socket. `close`, outside any task: say so with this code (RFC 6455, 7.4) and end.
    """

    nursery: trio.Nursery
    send: Callable[[str], Awaitable[None]]
    direct: DirectWriter | None
    close: Callable[[int], None]


class Conversation(Protocol):
    def begin(self, wire: Wire) -> None: ...

    async def receive(self, data: str | bytes) -> None: ...

    def end(self) -> None: ...


Headers = Sequence[tuple[bytes, bytes]]  # of a handshake, the names in lower case
Opener = Callable[[Headers], Conversation | None]  # None: the application is to answer this handshake
