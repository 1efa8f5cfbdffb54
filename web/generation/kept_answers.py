"""The answers kept for clients that come back: their frames, found by an unguessable token. Pure.

Bound: all together hold at most `limit` bytes. Each counts OVERHEAD besides its frames, so their number is bounded too.
Where there is no room, the API key that holds most gives up its oldest answer, ended ones first.
"""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from itertools import pairwise
from typing import Final, Generic, TypeVar

from ...protocol.reports import KeptFigures

PLACE: Final = 8  # bytes that tell where a frame begins
OVERHEAD: Final = 8192  # bytes of an answer besides its frames: its task and its outbox


class KeptAnswer(ABC):
    """One answer: its frames, in the order of their numbers, for as long as it is kept."""

    def __init__(self, token: str, tenant: str) -> None:
        self.token = token
        self.tenant = tenant
        self.kept = False
        self.ended = False  # the last frame is there, or comes in this turn of the event loop
        self._frames = bytearray()  # one behind the other: an object each would take 33 bytes more
        self._places = array("Q", [0])  # where in there each begins, and the next will

    @property
    def size(self) -> int:
        return OVERHEAD + len(self._frames) + PLACE * self.count

    @property
    def count(self) -> int:
        return len(self._places) - 1

    def frames(self, first: int, most: int) -> list[bytes]:
        """At most so many frames, from this number on."""
        places = self._places[first : first + most + 1]
        return [bytes(self._frames[begin:end]) for begin, end in pairwise(places)]

    def append(self, frame: bytes) -> int:
        """Keep one more frame; returns the bytes that it takes."""
        self._frames += frame
        self._places.append(len(self._frames))
        return len(frame) + PLACE

    def forget(self) -> None:
        self.kept = False
        self._frames.clear()
        del self._places[1:]
        self.on_forgotten()

    @abstractmethod
    def on_forgotten(self) -> None:
        """It is no longer kept: nobody can resume it."""


_Kept = TypeVar("_Kept", bound=KeptAnswer)


class KeptAnswers(Generic[_Kept]):
    """All of a process. `figures` shows at any time how many there are and what they hold."""

    def __init__(self, limit: int, figures: KeptFigures, events: Counter[str]) -> None:
        self._limit = limit
        self._figures = figures
        self._events = events
        self._answers: dict[str, _Kept] = {}  # by token, oldest first
        self._held: dict[str, int] = {}  # bytes by tenant, without those that hold none

    def keep(self, answer: _Kept) -> None:
        """Keep an answer from now on, with the frames that it has."""
        answer.kept = True
        self._answers[answer.token] = answer
        self._figures.answers += 1
        self._hold(answer.tenant, answer.size)

    def append(self, answer: _Kept, frame: bytes) -> None:
        """Keep one more frame of an answer; nothing happens if the answer is not kept."""
        if answer.kept:
            self._hold(answer.tenant, answer.append(frame))

    def find(self, token: str, tenant: str) -> _Kept | None:
        answer = self._answers.get(token)
        return answer if answer is not None and answer.tenant == tenant else None

    def discard(self, answer: _Kept) -> None:
        """Keep it no longer; harmless if it is not kept."""
        if answer.kept:
            del self._answers[answer.token]
            self._figures.answers -= 1
            self._hold(answer.tenant, -answer.size)
            answer.forget()

    def _hold(self, tenant: str, bytes: int) -> None:
        self._figures.bytes += bytes
        self._held[tenant] = self._held.get(tenant, 0) + bytes
        if not self._held[tenant]:
            del self._held[tenant]
        while self._figures.bytes > self._limit:
            most = max(self._held, key=self._held.__getitem__)
            theirs = [answer for answer in self._answers.values() if answer.tenant == most]
            self._events["given_up"] += 1
            self.discard(next((answer for answer in theirs if answer.ended), theirs[0]))
