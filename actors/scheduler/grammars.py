"""The grammars that the worker builds: kept after the last request for the next one with the same text. Pure."""

from typing import Final

from ...protocol.steps import PrepareGrammar
from .prepared import Preparations

KEPT: Final = 32  # unused ones: a built grammar takes some hundred kilobytes in the worker, a few take megabytes


class Grammars(Preparations[str]):
    """Grammars by text."""

    def drop_unused(self) -> None:
        unused = [one for one in self._all.values() if not one.users]
        for one in unused[: max(len(unused) - KEPT, 0)]:
            self.drop(one)

    def orders(self) -> list[PrepareGrammar]:
        """What the worker must build now, for requests that wait for it."""
        orders: list[PrepareGrammar] = []
        for grammar in self._all.values():
            if grammar.users and not grammar.ordered:
                grammar.ordered = True
                forget = self.take_forgotten()
                orders.append(PrepareGrammar(grammar=grammar.number, text=grammar.source, forget=forget))
        return orders
