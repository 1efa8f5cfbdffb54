"""What requests need in the worker before they can run: a grammar (grammars.py), an adapter (adapters.py). Pure.

Each is prepared once for all requests that name it. The worker has room for some. The scheduler says which, and the
worker keeps exactly those. If one finds no room, these leave, in this order:

- those that nobody uses, the longest unused first;
- for an interactive request, those that only lines of batches use, or requests whose readers are behind;
- those that came first: they take no further requests, and leave once the running ones have ended.

So all have their turn, and one that came back waits behind those that waited before. Between API keys, the one that
holds least goes first, and another key's leave only if that key still holds as much as it without them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

_Source = TypeVar("_Source", bound=Hashable)


class Prepared(Generic[_Source]):
    """One grammar or adapter: `ready` once the worker has it."""

    __slots__ = ("held", "number", "ordered", "ready", "served", "size", "source", "users", "wanted_since")

    def __init__(self, number: int, source: _Source, size: int) -> None:
        self.number = number  # never another one's
        self.source = source
        self.size = size  # of the room in the worker
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

    def leave(self) -> None:
        """The worker has it no more."""
        self.ordered = self.ready = self.held = self.served = False
        self.wanted_since = 0


class Claim(NamedTuple):
    """Why one is needed: the most urgent of its requests."""

    interactive: bool  # no line of a batch
    able: bool  # could use it now
    tenant: str

    @property
    def urgency(self) -> tuple[bool, bool]:
        return (self.interactive, self.able)


# Empties one for what an interactive request needs, or (False) a line. Returns whether no sequence computes with it.
Vacate = Callable[[Prepared[_Source], bool], bool]


class Preparations(Generic[_Source]):
    """Those of one kind by their source, in the order of the last request with each."""

    def __init__(self, room: int) -> None:
        self._all: dict[_Source, Prepared[_Source]] = {}
        self._room = self._free = room
        self._forgotten: list[int] = []  # the worker must be told to forget these
        self._newest = self._turn = 0

    def use(self, source: _Source | None, size: int = 1) -> Prepared[_Source] | None:
        """What a new request needs; None if it names nothing."""
        if not source:
            return None
        prepared = self._all.pop(source, None)
        if prepared is None:
            self._newest += 1
            prepared = Prepared(self._newest, source, size)
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
        self._free = self._room
        for prepared in tuple(self._all.values()):
            prepared.leave()
            if not prepared.users:
                del self._all[prepared.source]

    def drop(self, prepared: Prepared[_Source]) -> None:
        """The next request with its source gets another number."""
        del self._all[prepared.source]
        if prepared.ordered:
            self._forgotten.append(prepared.number)
            self._free += prepared.size

    def take_forgotten(self) -> tuple[int, ...]:
        forgotten, self._forgotten = tuple(self._forgotten), []
        return forgotten

    def order(
        self, claims: Callable[[], Mapping[Prepared[_Source], Claim]], vacate: Vacate[_Source]
    ) -> list[tuple[Prepared[_Source], tuple[int, ...]]]:
        """What the worker must prepare now, and what it must forget before each.

        `claims` is asked only if one is wanted: it looks at every request.
        """
        for one in self._all.values():
            one.held = False
        wanted = [one for one in self._all.values() if one.users and not one.ordered]
        if not wanted:
            return []
        claimed, ordered, short = claims(), list[tuple[Prepared[_Source], tuple[int, ...]]](), False
        holds = Counter[str]()
        for one in self._all.values():
            if one.users and one.ordered:
                holds[claimed[one].tenant] += one.size
        for one in self._in_turn([one for one in wanted if claimed[one].able], claimed, holds):
            if one.size > self._free and (short or not self._make_room(one, claimed, holds, vacate)):
                short = True  # those behind it may still go on if they find room without others' leaving
                continue
            one.ordered = True
            self._free -= one.size
            self._begin_turn(one)
            holds[claimed[one].tenant] += one.size
            ordered.append((one, self.take_forgotten()))
        return ordered

    def _in_turn(
        self, wanted: list[Prepared[_Source]], claimed: Mapping[Prepared[_Source], Claim], holds: Counter[str]
    ) -> list[Prepared[_Source]]:
        """Interactive requests' first, then those of the key that holds least once it has those before, then by age."""
        for one in wanted:
            if not one.wanted_since:
                self._begin_turn(one)
        wanted.sort(key=lambda one: (not claimed[one].interactive, one.wanted_since))
        before, ranks = holds.copy(), dict[Prepared[_Source], tuple[bool, int, int]]()
        for one in wanted:
            ranks[one] = (not claimed[one].interactive, before[claimed[one].tenant], one.wanted_since)
            before[claimed[one].tenant] += one.size
        return sorted(wanted, key=ranks.__getitem__)

    def _begin_turn(self, one: Prepared[_Source]) -> None:
        self._turn += 1
        one.wanted_since = self._turn

    def _make_room(
        self,
        one: Prepared[_Source],
        claimed: Mapping[Prepared[_Source], Claim],
        holds: Counter[str],
        vacate: Vacate[_Source],
    ) -> bool:
        for other in tuple(self._all.values()):
            if other.ordered and not other.users and one.size > self._free:
                self.drop(other)
        mine, leaving, missing = claimed[one], list[Prepared[_Source]](), one.size - self._free
        here = [other for other in self._all.values() if other.users and other.ready]
        for other in sorted(here, key=lambda it: (claimed[it].urgency, -holds[claimed[it].tenant], it.wanted_since)):
            if missing > 0 and _gives_way(other, claimed[other], mine, holds):
                leaving.append(other)
                missing -= other.size
        if missing > 0:
            return False
        for other in leaving:
            other.held = True
        vacated = [vacate(other, mine.interactive) for other in leaving]
        if not all(vacated):
            return False  # they leave all at once: what one of them gives must not go to a third
        for other in leaving:
            holds[claimed[other].tenant] -= other.size
            self._forgotten.append(other.number)
            self._free += other.size
            other.leave()  # its requests keep their keys in the prefix cache: they are for the same number
        return True


def _gives_way(other: Prepared[_Source], its: Claim, mine: Claim, holds: Counter[str]) -> bool:
    if its.urgency != mine.urgency:
        return its.urgency < mine.urgency
    fair = its.tenant == mine.tenant or holds[its.tenant] - other.size >= holds[mine.tenant]
    return other.served and fair  # else it would have been prepared for nothing
