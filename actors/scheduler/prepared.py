"""What requests need in the worker before they can run: grammars and adapters. Pure: the worker keeps exactly these.

Each is prepared once for all requests that name it, and kept after the last of them for the next one, up to `kept` that
nobody uses. A new worker prepares those in use again.
"""

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from ...protocol.steps import Preparation

# How many unused ones: a built grammar takes some hundred kilobytes in the worker, a few take megabytes; an adapter of
# rank 16 takes about a hundredth of the model.
KEPT_GRAMMARS: Final = 32
KEPT_ADAPTERS: Final = 16

_Source = TypeVar("_Source", bound=Hashable)
Order = Callable[[int, _Source, tuple[int, ...]], Preparation]  # prepare this under that number, and forget those


class Prepared(Generic[_Source]):
    """One grammar or adapter: `ready` once the worker has it."""

    __slots__ = ("number", "ordered", "ready", "source", "users")

    def __init__(self, number: int, source: _Source) -> None:
        self.number = number  # never used for another one, nor for this one after the worker had to forget it
        self.source = source
        self.users = 0  # unfinished requests
        self.ordered = self.ready = False

    @property
    def under_way(self) -> bool:
        return self.ordered and not self.ready


class Preparations(Generic[_Source]):
    """Those of one kind by their source, in the order of the last request with each."""

    def __init__(self, order: Order[_Source], kept: int) -> None:
        self._order = order
        self._kept = kept
        self._all: dict[_Source, Prepared[_Source]] = {}
        self._forgotten: list[int] = []  # the worker must forget these with the next order
        self._newest = 0

    def use(self, source: _Source | None) -> Prepared[_Source] | None:
        """What a new request needs; None if it names nothing."""
        if not source:
            return None
        prepared = self._all.pop(source, None)
        if prepared is None:
            self._newest += 1
            prepared = Prepared(self._newest, source)
        self._all[source] = prepared
        prepared.users += 1
        return prepared

    def release(self, prepared: Prepared[_Source] | None) -> None:
        """A request that needed it has ended."""
        if prepared is None:
            return
        prepared.users -= 1
        unused = [one for one in self._all.values() if not one.users]
        for one in unused[: max(len(unused) - self._kept, 0)]:
            self._drop(one)

    def done(self, number: int) -> None:
        """The worker has it. The answer of a lost worker comes before the news of its loss, if it comes."""
        for prepared in self._all.values():
            if prepared.number == number and prepared.ordered:
                prepared.ready = True

    def failed(self, number: int) -> None:
        """The worker cannot prepare it: it tries again for the next request."""
        for prepared in tuple(self._all.values()):
            if prepared.number == number:
                self._drop(prepared)

    def forget_worker(self) -> None:
        """The worker is gone with everything that it had."""
        self._forgotten.clear()
        for prepared in tuple(self._all.values()):
            prepared.ordered = prepared.ready = False
            if not prepared.users:
                del self._all[prepared.source]

    def orders(self) -> list[Preparation]:
        """What the worker must prepare now, for requests that wait for it."""
        orders: list[Preparation] = []
        for prepared in self._all.values():
            if prepared.users and not prepared.ordered:
                prepared.ordered = True
                forget, self._forgotten = tuple(self._forgotten), []
                orders.append(self._order(prepared.number, prepared.source, forget))
        return orders

    def _drop(self, prepared: Prepared[_Source]) -> None:
        del self._all[prepared.source]
        if prepared.ordered:
            self._forgotten.append(prepared.number)
