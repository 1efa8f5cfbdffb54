"""Where the live sequences are: waiting (no KV), running (a row in the batch) or parked (KV kept, no row).

Each place is a list in the policy's order. A sequence is in exactly one of them until it ends. `tenants.py` hears of
every move.
"""

from bisect import bisect_left, insort
from operator import attrgetter

from .sequence import Place, Sequence
from .tenants import Tenants

_order = attrgetter("order")


class Queues:
    """Three ordered lists, changed only through `add`, `move` and `remove`."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.tenants = Tenants()

    def add(self, sequence: Sequence, place: Place = "waiting") -> None:
        sequence.place = place
        insort(self._list(place), sequence, key=_order)
        self.tenants.enter(sequence, self.running)

    def remove(self, sequence: Sequence) -> None:
        members = self._list(sequence.place)
        position = bisect_left(members, sequence.order, key=_order)
        assert members[position] is sequence, sequence
        del members[position]
        self.tenants.leave(sequence)
        sequence.place = "ended"

    def move(self, sequence: Sequence, place: Place) -> None:
        self.remove(sequence)
        self.add(sequence, place)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.parked)

    def _list(self, place: Place) -> list[Sequence]:
        match place:
            case "waiting":
                return self.waiting
            case "running":
                return self.running
            case "parked":
                return self.parked
            case "ended":
                raise AssertionError("an ended sequence is in no queue")
