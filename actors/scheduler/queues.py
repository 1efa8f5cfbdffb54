"""The queues of live sequences, and how much each tenant was served. Pure.

Until it ends, a sequence is waiting (no KV), running (a row in the batch) or parked (KV kept, no row). Each place is a
list in the sequences' order.

Every tenant has a virtual token counter (Sheng et al. 2024, "Fairness in Serving Large Language Models"). It counts
what is computed for the tenant, each token of a sequence once: recomputing after a preemption or a lost worker is free,
and so are cached prefixes. A tenant of weight 2 is charged half, and so gets twice as much. A pause earns no credit:
when a tenant comes back, its counter is lifted to those of the waiting tenants. Running sequences are charged only when
counters are compared, so a step without waiting sequences costs nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from .sequence import Place, Sequence

OUTPUT_WEIGHT: Final = 2  # prompt tokens: these share one reading of the weights, an output token needs its own
# Prices are whole multiples of this: so sums of them are exact, in whatever pieces a sequence is charged (up to 2^37).
_PRICE_UNIT: Final = 2.0**-16

_order = attrgetter("order")


def _remove(line: list[Sequence], sequence: Sequence) -> None:
    position = bisect_left(line, sequence.order, key=_order)
    assert line[position] is sequence, sequence
    del line[position]


class TenantQueue:
    """One API key's counter and places."""

    __slots__ = ("members", "most_blocks", "price", "rows", "served", "waiting")

    def __init__(self, weight: float = 1, most_blocks: int | None = None) -> None:
        self.most_blocks = most_blocks  # of KV, in the tables of its sequences; None: no limit
        self.price = round(1 / weight / _PRICE_UNIT) * _PRICE_UNIT  # of a token
        self.served = 0.0  # tokens, an output token as two, at this price
        self.waiting: list[Sequence] = []  # in order
        self.rows = 0  # running sequences
        self.members = 0  # sequences in the queues

    @property
    def seats(self) -> int:
        """Sequences that have begun: they hold a row, or wait to get it back."""
        return self.members - len(self.waiting)


class Queues:
    """Three ordered lists, and each tenant's part in them. They change only through `add`, `move` and `remove`."""

    def __init__(
        self, weights: Mapping[str, float] | None = None, most_blocks: Mapping[str, int] | None = None
    ) -> None:
        """`weights` are those of tenants other than 1, `most_blocks` the limits of those that have one."""
        self._weights = weights or {}
        self._most_blocks = most_blocks or {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self._lists = {"waiting": self.waiting, "running": self.running, "parked": self.parked}
        self.tenants: dict[str, TenantQueue] = {}  # those with sequences in the queues
        self._known: dict[str, TenantQueue] = {}  # every tenant seen so far: at most one per API key
        self._seated: TenantQueue | None = None  # the last one that got a row

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.parked)

    @property
    def several_tenants(self) -> bool:
        return len(self.tenants) > 1

    @property
    def limited(self) -> bool:
        """Whether a tenant may hold so many blocks only."""
        return bool(self._most_blocks) and any(tenant.most_blocks is not None for tenant in self.tenants.values())

    def tenant_of(self, sequence: Sequence) -> TenantQueue:
        return self._known[sequence.live.generate.tenant]

    def add(self, sequence: Sequence, place: Place = "waiting") -> None:
        sequence.place = place
        insort(self._lists[place], sequence, key=_order)
        name = sequence.live.generate.tenant
        if (tenant := self._known.get(name)) is None:
            tenant = self._known[name] = TenantQueue(self._weights.get(name, 1), self._most_blocks.get(name))
        self.tenants[name] = tenant
        tenant.members += 1
        if place == "waiting":
            if not tenant.waiting:
                self._lift(tenant)
            insort(tenant.waiting, sequence, key=_order)
        elif place == "running":
            tenant.rows += 1
            self._seated = tenant
            sequence.charged = max(sequence.charged, sequence.computed)  # a cached prefix is free

    def remove(self, sequence: Sequence) -> None:
        """Take it out of its queue. What a running one has computed is charged."""
        _remove(self._lists[sequence.place], sequence)
        name = sequence.live.generate.tenant
        tenant = self.tenants[name]
        tenant.members -= 1
        if not tenant.members:
            del self.tenants[name]
        if sequence.place == "waiting":
            _remove(tenant.waiting, sequence)
        elif sequence.place == "running":
            tenant.rows -= 1
            self.charge((sequence,))
        sequence.place = "ended"

    def move(self, sequence: Sequence, place: Place) -> None:
        self.remove(sequence)
        self.add(sequence, place)

    def charge(self, sequences: Iterable[Sequence]) -> None:
        """Count what was computed since the last charge."""
        known = self._known
        for sequence in sequences:
            start, end, prompt = sequence.charged, sequence.computed, sequence.prompt_tokens
            if end > start:
                sequence.charged = end
                served = end - start if end <= prompt else OUTPUT_WEIGHT * (end - max(start, prompt))
                if start < prompt < end:
                    served += prompt - start
                tenant = known[sequence.live.generate.tenant]
                tenant.served += served * tenant.price

    def _lift(self, tenant: TenantQueue) -> None:
        """Raise the counter of a tenant that begins to wait to the lowest among the waiting tenants.

        If no tenant waits, raise it to that of the tenant that last got a row.
        """
        others = [other for other in self.tenants.values() if other.waiting]
        if not others:
            if self._seated is None or self._seated is tenant:
                return
            others = [self._seated]
        self.charge(self.running)
        tenant.served = max(tenant.served, min(other.served for other in others))
