"""The LoRA adapters in the worker: at most `most`, in turn (prepared.py). Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from ...protocol.adapters import Adapter
from ...protocol.reports import AdapterFigures
from ...protocol.steps import ForgetAdapters, PrepareAdapter
from .prepared import Claim, Preparations, Prepared, Vacate

KEPT_GONE: Final = 256  # a request for one may still come: more of them than are being tokenised when it is unloaded


class Adapters(Preparations[Adapter]):
    """Adapters by what they are: another loading of the same name is another one."""

    def __init__(self, most: int) -> None:
        super().__init__(room=most)
        self._loads = 0
        self._gone: dict[Adapter, None] = {}  # whose requests are the last ones; the newest last

    def retire(self, adapter: Adapter) -> None:
        """It is unloaded. The worker forgets it after the last request, even if that is still on its way."""
        self._gone[adapter] = None
        if len(self._gone) > KEPT_GONE:
            del self._gone[next(iter(self._gone))]
        self.drop_unused()

    def drop_unused(self) -> None:
        for one in tuple(self._all.values()):
            if not one.users and (one.source in self._gone or not one.ordered):
                self.drop(one)

    def orders(
        self, claims: Callable[[], Mapping[Prepared[Adapter], Claim]], vacate: Vacate[Adapter]
    ) -> list[ForgetAdapters | PrepareAdapter]:
        """What the worker must forget and load now."""
        ordered = self.order(claims, vacate)
        self._loads += len(ordered)
        forget = (*(number for _, numbers in ordered for number in numbers), *self.take_forgotten())
        prepare = [PrepareAdapter(adapter=one.number, path=one.source.path) for one, _ in ordered]
        return [ForgetAdapters(adapters=forget), *prepare] if forget else [*prepare]

    def figures(self) -> AdapterFigures:
        every = self._all.values()
        wanted = [one for one in every if one.users and not one.ready]
        return AdapterFigures(
            most=self._room,
            loaded=sum(one.ready for one in every),
            loading=sum(one.under_way for one in every),
            waiting=sum(not one.ordered for one in wanted),
            loads=self._loads,
            running_names=tuple(sorted(one.source.name for one in every if one.users and one.ready)),
            waiting_names=tuple(sorted(one.source.name for one in wanted)[: self._room]),
        )
