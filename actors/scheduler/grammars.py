"""The grammars that the worker builds: kept after the last request for the next one with the same text. Pure."""

from typing import Final

from ...protocol.steps import PrepareGrammar
from .prepared import Preparations

KEPT: Final = 32  # unused ones: a built grammar takes some hundred kilobytes in the worker, a few take megabytes
MOST_MEMORY: Final = 512 << 20  # bytes of all that are built; the compiler accepts none above a quarter of this


class Grammars(Preparations[str]):
    """Grammars by text. One that finds no room waits until others are unused, and those behind it wait too."""

    def drop_unused(self) -> None:
        unused = [one for one in self._all.values() if not one.users]
        for one in unused[: max(len(unused) - KEPT, 0)]:
            self.drop(one)

    def orders(self) -> list[PrepareGrammar]:
        """What the worker must build now, for requests that wait for it."""
        orders: list[PrepareGrammar] = []
        wanted = [grammar for grammar in self._all.values() if grammar.users and not grammar.ordered]
        for grammar in sorted(wanted, key=lambda one: one.number):
            if not self._has_room(grammar.memory):
                break
            grammar.ordered = True
            forget = self.take_forgotten()
            orders.append(PrepareGrammar(grammar=grammar.number, text=grammar.source, forget=forget))
        return orders

    def _has_room(self, memory: int) -> bool:
        """Gives up unused ones for it, the longest unused first."""
        built = [one for one in self._all.values() if one.ordered]
        excess = sum(one.memory for one in built) + memory - MOST_MEMORY
        unused = [one for one in built if not one.users]
        while excess > 0 and unused:
            excess -= unused[0].memory
            self.drop(unused.pop(0))
        return excess <= 0
