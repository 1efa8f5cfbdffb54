"""What requests need in the worker before they can run: a grammar (grammars.py), an adapter (adapters.py). Pure.

Each is prepared once for all requests that name it. The scheduler says which, and the worker keeps exactly those.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

_Source = TypeVar("_Source", bound=Hashable)


class Prepared(Generic[_Source]):
    """One grammar or adapter: `ready` once the worker has it."""

    __slots__ = ("held", "memory", "number", "ordered", "ready", "served", "source", "users", "wanted_since")

    def __init__(self, number: int, source: _Source, memory: int) -> None:
        self.number = number  # never another one's
        self.source = source
        self.memory = memory  # bytes that it takes in the worker; 0 if that is no matter
        self.users = 0  # unfinished requests
        self.ordered = self.ready = False
        self.served = False  # a sequence of the worker has used it
        self.held = False  # it is about to leave the worker: what does not run yet waits
        self.wanted_since = 0  # in the order in which they came to be needed

    @property
    def under_way(self) -> bool:
        return self.ordered and not self.ready

    @property
    def usable(self) -> bool:
        return self.ready and not self.held


class Preparations(Generic[_Source]):
    """Those of one kind by their source, in the order of the last request with each."""

    def __init__(self) -> None:
        self._all: dict[_Source, Prepared[_Source]] = {}
        self._forgotten: list[int] = []  # the worker must be told to forget these
        self._newest = 0

    def use(self, source: _Source | None, memory: int = 0) -> Prepared[_Source] | None:
        """What a new request needs; None if it names nothing."""
        if not source:
            return None
        prepared = self._all.pop(source, None)
        if prepared is None:
            self._newest += 1
            prepared = Prepared(self._newest, source, memory)
        self._all[source] = prepared
        prepared.users += 1
        return prepared

    def release(self, prepared: Prepared[_Source] | None) -> None:
        """A request that needed it has ended."""
        if prepared is not None:
            prepared.users -= 1
            self.drop_unused()

    def drop_unused(self) -> None:
        """Give up those that nobody uses, as far as they are not kept."""
        raise NotImplementedError

    def done(self, number: int) -> None:
        """The worker has it. The answer of a lost worker comes before the news of its loss, if it comes."""
        for prepared in self._all.values():
            if prepared.number == number and prepared.ordered:
                prepared.ready = True

    def failed(self, number: int) -> None:
        """The worker cannot prepare it: it tries again for the next request."""
        for prepared in tuple(self._all.values()):
            if prepared.number == number:
                self.drop(prepared)

    def forget_worker(self) -> None:
        """The worker is gone with everything that it had."""
        self._forgotten.clear()
        for prepared in tuple(self._all.values()):
            prepared.ordered = prepared.ready = prepared.served = False
            prepared.wanted_since = 0
            if not prepared.users:
                del self._all[prepared.source]

    def drop(self, prepared: Prepared[_Source]) -> None:
        """The next request with its source gets another number."""
        del self._all[prepared.source]
        if prepared.ordered:
            self._forgotten.append(prepared.number)

    def take_forgotten(self) -> tuple[int, ...]:
        forgotten, self._forgotten = tuple(self._forgotten), []
        return forgotten
