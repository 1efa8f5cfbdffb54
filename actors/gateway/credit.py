"""How far a stream may be ahead of its reader, in tokens. Pure.

The engine generates a token only on credit. The initial credit is the outbox's size. What the reader takes is granted
again, half an outbox at a time: a reader that keeps up costs one message per half outbox, and the engine never runs
out. A client may also grant credit (WebSocket `credit` frames); the outbox's size remains an upper bound.
"""

from collections.abc import Callable


class CreditLine:
    """The credit of one stream. `pass_on` gives the engine credit (more than 0) when it is due."""

    __slots__ = ("_granted", "_pass_on", "_passed_on", "_quiet_below", "_size", "_taken")

    def __init__(self, size: int, pass_on: Callable[[int], None]) -> None:
        self._size = size
        self._pass_on = pass_on
        self._taken = 0
        self._passed_on = size
        self._quiet_below = max(1, size // 2)  # tokens taken at which credit is due, without grants by the client
        self._granted: int | None = None  # in total by the client; None: it grants none

    @property
    def first(self) -> int:
        """The credit a stream starts with."""
        return self._passed_on

    def take(self, tokens: int) -> None:
        """The reader took tokens out of the outbox."""
        self._taken += tokens
        if self._taken >= self._quiet_below:
            self._settle()

    def grant(self, tokens: int) -> None:
        """The client granted tokens. From its first grant on, only what it grants is generated."""
        if self._granted is None:
            self._granted = self._passed_on  # credit is never taken back
            self._quiet_below = 0
        self._granted += tokens
        self._settle()

    def _settle(self) -> None:
        room = self._size + self._taken
        allowed = room if self._granted is None else min(room, self._granted)
        due = allowed - self._passed_on
        # A client's grant may be as small as one token, and the client waits for its effect.
        if due <= 0 or (self._granted is None and due < max(1, self._size // 2)):
            return
        self._passed_on = allowed
        if self._granted is None:
            self._quiet_below = allowed - self._size + max(1, self._size // 2)
        self._pass_on(due)
