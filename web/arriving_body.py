"""The body of one HTTP request while it arrives: collected within bounds, and decoded once it is complete.

A body has BODY_SECONDS, and one second more for each KiB of it that has arrived: a slow line gets through, and a client
that stops does not hold its memory for long.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from ..protocol.errors import ApiError
from .body_budget import BodyBudget, BodyShare
from .large_json import decode_aside

T = TypeVar("T")

BODY_SECONDS: Final = 30.0
SLOWEST: Final = 1024  # bytes per second


class ArrivingBody:
    """Whoever reads the connection calls `add` and `end`, the handler `read`, and who ends the exchange `release`.

    `most` bounds its bytes, and `expected` is their number if it was announced.
    """

    __slots__ = ("_data", "_deadline", "_done", "_fault", "_most", "_patience", "_share")

    def __init__(self, budget: BodyBudget, most: int, expected: int = 0) -> None:
        self._share = BodyShare(budget)
        self._most = most
        self._data = bytearray()  # one buffer: pieces of two bytes would cost twenty times their size
        self._deadline = trio.current_time() + BODY_SECONDS
        self._done = False  # it is complete, or refused
        self._fault: ApiError | None = None
        self._patience: trio.CancelScope | None = None  # of the handler, while it waits
        if expected > most:
            self._refuse(_too_large())

    def add(self, piece: bytes, tenant: str) -> None:
        """The next bytes. Those of a body that was refused are dropped."""
        if self._fault is not None:
            return
        if len(self._data) + len(piece) > self._most:
            self._refuse(_too_large())
        elif not self._share.grow(len(piece), tenant):
            problem = "Too many large bodies are arriving at the same time."
            self._refuse(ApiError("server_overloaded", problem, retry_after=1))
        else:
            self._data += piece
            self._deadline += len(piece) / SLOWEST
            if self._patience is not None:
                self._patience.deadline = self._deadline

    def end(self) -> None:
        """The last bytes were added."""
        self._done = True
        if self._patience is not None:
            self._patience.cancel()

    async def read(self, decode: Callable[[bytes], T], tenant: str) -> T:
        """What `decode` makes of the whole body. Raises ApiError: 408, 413, 429, and what `decode` raises."""
        if not self._done:
            with trio.CancelScope(deadline=self._deadline) as self._patience:
                await trio.sleep_forever()
            self._patience = None
        if self._fault is not None:
            raise self._fault
        if not self._done:
            raise ApiError("request_timeout", "The body did not arrive in time.")
        data, self._data = bytes(self._data), bytearray()
        try:
            return await decode_aside(data, decode, tenant)
        finally:
            self._share.release()

    def release(self) -> None:
        """Nobody reads it any more."""
        self._share.release()

    def _refuse(self, fault: ApiError) -> None:
        self._fault = fault
        self._data = bytearray()
        self._share.release()
        self.end()


def _too_large() -> ApiError:
    return ApiError("content_too_large", "The body is larger than this server accepts (--max-body-bytes).")
