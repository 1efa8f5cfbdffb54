"""The grammars that the worker builds: kept after the last request for the next one with the same text. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from ...protocol.steps import PrepareGrammar
from .prepared import Claim, Preparations, Prepared, Vacate

KEPT: Final = 32  # unused ones: a built grammar takes some hundred kilobytes in the worker, a few take megabytes
MOST_MEMORY: Final = 512 << 20  # bytes of all that are built; the compiler accepts none above a quarter of this


class Grammars(Preparations[str]):
    """Grammars by text, in turn (prepared.py); the room is memory."""

    def __init__(self) -> None:
        super().__init__(room=MOST_MEMORY)

    def drop_unused(self) -> None:
        unused = [one for one in self._all.values() if not one.users]
        for one in unused[: max(len(unused) - KEPT, 0)]:
            self.drop(one)

    def orders(self, claims: Callable[[], Mapping[Prepared[str], Claim]], vacate: Vacate[str]) -> list[PrepareGrammar]:
        """What the worker must build now, for requests that wait for it."""
        return [
            PrepareGrammar(grammar=one.number, text=one.source, forget=forget)
            for one, forget in self.order(claims, vacate)
        ]
