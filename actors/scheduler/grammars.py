"""The grammars that the worker builds and keeps. Pure: the scheduler says which, the worker keeps exactly those.

A grammar is built once for all requests with the same text, and kept after the last of them for the next one, up to
`KEPT` that nobody uses. A new worker builds those in use again.
"""

from typing import Final

from ...protocol.steps import PrepareGrammar

KEPT: Final = 32  # unused ones: a built grammar takes some hundred kilobytes in the worker, a few take megabytes


class Grammar:
    """One grammar: `ready` once the worker has built it."""

    __slots__ = ("number", "ordered", "ready", "text", "users")

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.users = 0  # unfinished requests
        self.ordered = self.ready = False

    @property
    def building(self) -> bool:
        return self.ordered and not self.ready


class Grammars:
    """Grammars by text, in the order of the last request with each."""

    def __init__(self) -> None:
        self._grammars: dict[str, Grammar] = {}
        self._forgotten: list[int] = []  # the worker must forget these with the next order
        self._newest = 0

    def use(self, text: str) -> Grammar | None:
        """The grammar of a new request; None if its answer is free."""
        if not text:
            return None
        grammar = self._grammars.pop(text, None)
        if grammar is None:
            self._newest += 1
            grammar = Grammar(self._newest, text)
        self._grammars[text] = grammar
        grammar.users += 1
        return grammar

    def release(self, grammar: Grammar | None) -> None:
        """A request with this grammar has ended."""
        if grammar is None:
            return
        grammar.users -= 1
        unused = [one for one in self._grammars.values() if not one.users]
        for one in unused[: max(len(unused) - KEPT, 0)]:
            self._drop(one)

    def built(self, number: int) -> None:
        """The worker has built it. The answer of a lost worker comes before the news of its loss, if it comes."""
        for grammar in self._grammars.values():
            if grammar.number == number and grammar.ordered:
                grammar.ready = True

    def failed(self, number: int) -> None:
        """The worker cannot build it: the next request with its text is told anew."""
        for grammar in tuple(self._grammars.values()):
            if grammar.number == number:
                self._drop(grammar)

    def forget_worker(self) -> None:
        """No grammar is built any more."""
        self._forgotten.clear()
        for grammar in tuple(self._grammars.values()):
            grammar.ordered = grammar.ready = False
            if not grammar.users:
                del self._grammars[grammar.text]

    def orders(self) -> list[PrepareGrammar]:
        """What the worker must build now, for requests that wait for it."""
        orders: list[PrepareGrammar] = []
        for grammar in self._grammars.values():
            if grammar.users and not grammar.ordered:
                grammar.ordered = True
                forget, self._forgotten = tuple(self._forgotten), []
                orders.append(PrepareGrammar(grammar=grammar.number, text=grammar.text, forget=forget))
        return orders

    def _drop(self, grammar: Grammar) -> None:
        del self._grammars[grammar.text]
        if grammar.ordered:
            self._forgotten.append(grammar.number)
