"""Who was served how much: a virtual token counter for each tenant (Sheng et al. 2024, "Fairness in Serving Large
Language Models"), and what each has in the queues.

A counter grows by what is computed for its tenant, each token of a sequence once: one that must be computed again,
after a preemption or in another worker, was paid for. Cached prefixes cost nothing. Who comes back from a pause has
saved nothing up: its counter is lifted to those of the tenants that waited meanwhile. Running sequences are charged
only when somebody compares, so a step in which nobody waits knows nothing of tenants. Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from .sequence import Sequence

OUTPUT_WEIGHT: Final = 2  # of a prompt's token: those share a reading of the weights, an output's needs one of its own

_order = attrgetter("order")


class Tenant:
    """One API key's counter and places."""

    __slots__ = ("members", "rows", "served", "waiting")

    def __init__(self) -> None:
        self.served = 0  # tokens, an output token as two
        self.waiting: list[Sequence] = []  # in order
        self.rows = 0  # running sequences
        self.members = 0  # sequences in the queues

    @property
    def seats(self) -> int:
        """Sequences that have begun and hold a row, or wait to get theirs back."""
        return self.members - len(self.waiting)


class Tenants:
    """Every tenant that was ever here, as many as there are API keys. The queues tell it of every move."""

    def __init__(self) -> None:
        self.active: dict[str, Tenant] = {}  # those with sequences in the queues
        self._known: dict[str, Tenant] = {}
        self._seated: Tenant | None = None  # who was the last to get a row

    @property
    def several(self) -> bool:
        return len(self.active) > 1

    def of(self, sequence: Sequence) -> Tenant:
        return self._known[sequence.live.generate.tenant]

    def enter(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """It has got its place; `running` are all that run."""
        name = sequence.live.generate.tenant
        if (tenant := self._known.get(name)) is None:
            tenant = self._known[name] = Tenant()
        self.active[name] = tenant
        tenant.members += 1
        if sequence.place == "waiting":
            if not tenant.waiting:
                self._lift(tenant, running)
            insort(tenant.waiting, sequence, key=_order)
        elif sequence.place == "running":
            tenant.rows += 1
            self._seated = tenant
            if sequence.computed > sequence.charged:
                sequence.charged = sequence.computed  # a prefix that the cache has

    def leave(self, sequence: Sequence) -> None:
        """It gives up its place, with what it has computed still there."""
        name = sequence.live.generate.tenant
        tenant = self.active[name]
        tenant.members -= 1
        if not tenant.members:
            del self.active[name]
        if sequence.place == "waiting":
            del tenant.waiting[bisect_left(tenant.waiting, sequence.order, key=_order)]
        elif sequence.place == "running":
            tenant.rows -= 1
            self.charge((sequence,))

    def charge(self, running: Iterable[Sequence]) -> None:
        """Count what was computed since they were last charged."""
        known = self._known
        for sequence in running:
            start, end, prompt = sequence.charged, sequence.computed, sequence.prompt_tokens
            if end > start:
                sequence.charged = end
                served = end - start if end <= prompt else OUTPUT_WEIGHT * (end - max(start, prompt))
                if start < prompt < end:
                    served += prompt - start
                known[sequence.live.generate.tenant].served += served

    def _lift(self, tenant: Tenant, running: Iterable[Sequence]) -> None:
        """It begins to wait: on a level with the least served of those that wait, else with the last that got a row."""
        others = [other for other in self.active.values() if other.waiting]
        if not others:
            if self._seated is None or self._seated is tenant:
                return
            others = [self._seated]
        self.charge(running)
        tenant.served = max(tenant.served, min(other.served for other in others))
