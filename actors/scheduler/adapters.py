"""The LoRA adapters in the worker: at most `most`, and the least recently used one leaves for another. Pure.

If all are in use, the one that came first takes no further requests, and leaves when its running ones have ended. So
every adapter has its turn, however many clients name the others.
"""

from collections.abc import Callable

from ...protocol.adapters import Adapter
from ...protocol.reports import AdapterFigures
from ...protocol.steps import ForgetAdapters, PrepareAdapter
from .prepared import Preparations, Prepared

PreparedAdapter = Prepared[Adapter]


class Adapters(Preparations[Adapter]):
    """Adapters by what they are: another loading of the same name is another one."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._turn = self._loads = 0
        self._gone: set[Adapter] = set()  # that no new request will name; in use

    def retire(self, adapter: Adapter) -> None:
        """No new request names it. The worker forgets it after the last one."""
        self._gone.add(adapter)
        self.drop_unused()

    def drop_unused(self) -> None:
        for one in tuple(self._all.values()):
            if not one.users and (one.source in self._gone or not one.ordered):
                self.drop(one)
        self._gone &= self._all.keys()

    def orders(self, computing: Callable[[], set[PreparedAdapter]]) -> list[ForgetAdapters | PrepareAdapter]:
        """What the worker must forget and load now. `computing`: those of the sequences that the worker knows."""
        wanted = [one for one in self._all.values() if one.users and not one.ordered]
        for one in self._all.values():
            one.held = False
        for one in wanted:
            if not one.wanted_since:
                self._begin_turn(one)
        prepare: list[PrepareAdapter] = []
        for one in sorted(wanted, key=lambda one: one.wanted_since):
            if not self._make_place(computing):
                break
            one.ordered = True
            self._begin_turn(one)
            self._loads += 1
            prepare.append(PrepareAdapter(adapter=one.number, path=one.source.path))
        forget = self.take_forgotten()
        return [ForgetAdapters(adapters=forget), *prepare] if forget else [*prepare]

    def figures(self) -> AdapterFigures:
        every = self._all.values()
        wanted = [one for one in every if one.users and not one.ready]
        return AdapterFigures(
            most=self._most,
            loaded=sum(one.ready for one in every),
            loading=sum(one.under_way for one in every),
            waiting=sum(not one.ordered for one in wanted),
            loads=self._loads,
            running_names=tuple(sorted(one.source.name for one in every if one.users and one.ready)),
            waiting_names=tuple(sorted(one.source.name for one in wanted)[: self._most]),
        )

    def _begin_turn(self, one: PreparedAdapter) -> None:
        self._turn += 1
        one.wanted_since = self._turn

    def _make_place(self, computing: Callable[[], set[PreparedAdapter]]) -> bool:
        here = [one for one in self._all.values() if one.ordered]
        if len(here) < self._most:
            return True
        if unused := next((one for one in here if not one.users), None):
            self.drop(unused)
            return True
        served = [one for one in here if one.served]  # another one would have been loaded for nothing
        if not served:
            return False
        first = min(served, key=lambda one: one.wanted_since)
        first.held = True
        if first in computing():
            return False
        # Its requests keep their keys in the prefix cache: they are for the same number.
        self._forgotten.append(first.number)
        first.ordered = first.ready = first.held = first.served = False
        first.wanted_since = 0
        return True
