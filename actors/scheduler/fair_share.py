"""The policy between tenants: who was served less goes first, and nobody's flood keeps a newcomer from a row.

Within a priority the turn is the least served tenant's (`tenants.py`), among the waiting and, for a step's tokens and
blocks, among the running; each tenant's own sequences keep their order. Nothing is held back for anybody: with one
tenant here all of this is `FIRST_COME`, and a share that nobody asks for is everybody's.

That alone would let a newcomer wait for the end of somebody's answer. So a sequence that has not started, or that was
preempted and is all its tenant has, takes what it lacks from the tenant that holds most of it, under these rules:

- it is the first in turn, and its tenant has no other one at its prompt: a step computes one after the other anyway;
- its tenant was served no more than the other, or has no row at all;
- the other keeps at least as much as its tenant then has: with two rows more, never with one, so nobody's first
  sequence gives way, and two tenants cannot take the same row from each other in turns;
- for a row, the last sequence of the other is parked: it keeps its blocks, nothing is computed twice, and it gets the
  next row that is free. For blocks, the last ones are preempted, if that is enough.

So a sequence takes a row at most once when it starts and once after each time that it was preempted: there are never
more rows taken than sequences and preemptions. Two tenants that both always have somebody waiting are served alike but
for what the sequences that they have begun may still cost: in R rows, where no sequence costs more than C, 2 R C (R
that run and R that were parked for others).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from operator import attrgetter
from typing import Final

from .blocks import blocks_for
from .policies import FIRST_COME, GivesWay, Policy, Short
from .queues import Queues
from .sequence import OrderKey, Sequence
from .tenants import Tenant

Rank = tuple[float, int, int, OrderKey]


def _rank(queues: Queues, sequence: Sequence) -> Rank:
    """Priority, then whose tenant was served least, then whose has fewer seats, then its own order."""
    tenant = queues.tenants.of(sequence)
    return (sequence.live.generate.priority, tenant.served, tenant.seats, sequence.order)


def least_served_first(queues: Queues) -> Iterator[Sequence]:
    """The waiting in turn. One that joins is charged for its chunk before the next turn is given."""
    tenants = queues.tenants
    if not tenants.several:
        yield from FIRST_COME.turns(queues)
        return
    tenants.charge(queues.running)
    lines = [tenant.waiting for tenant in tenants.active.values() if tenant.waiting]
    positions = [0] * len(lines)
    while heads := [
        (_rank(queues, line[position]), number)
        for number, (line, position) in enumerate(zip(lines, positions, strict=True))
        if position < len(line)
    ]:
        _, number = min(heads)
        sequence = lines[number][positions[number]]
        yield sequence
        if sequence.place == "waiting":
            positions[number] += 1
        else:
            tenants.charge((sequence,))


def running_by_rank(queues: Queues) -> Iterable[Sequence]:
    if not queues.tenants.several:
        return FIRST_COME.serving(queues)
    return sorted(queues.running, key=lambda sequence: _rank(queues, sequence))


def parked_then_most_served(queues: Queues, spared: Set[int]) -> Sequence | None:
    """As `parked_then_latest`, of the most served tenant."""
    if not queues.tenants.several:
        return FIRST_COME.choose_victim(queues, spared)
    candidates = queues.parked or [sequence for sequence in queues.running if sequence.id not in spared]
    return max(candidates, key=lambda sequence: _rank(queues, sequence), default=None)


def goes_first(queues: Queues, waiting: Sequence) -> bool:
    """A newcomer also before those of a tenant that may have to give way for it."""
    if FIRST_COME.goes_first(queues, waiting):
        return True
    mine = queues.tenants.of(waiting)
    if not queues.tenants.several or (waiting.started and mine.seats):
        return False
    if not any(_owes(other, mine) for other in queues.tenants.active.values()):
        return False
    name = waiting.live.generate.tenant
    return not any(one.live.generate.tenant == name and one.remaining > 1 for one in queues.running)


def _owes(other: Tenant, mine: Tenant) -> bool:
    return other is not mine and other.rows > 0 and (mine.rows == 0 or mine.served <= other.served)


def makes_room(queues: Queues, waiting: Sequence, short: Short) -> list[GivesWay]:
    """The last sequences of the tenant that holds most, if it then holds as much as the newcomer's at least."""
    if FIRST_COME.goes_first(queues, waiting):
        return FIRST_COME.makes_room(queues, waiting, short)
    if short.blocks > 0:
        sizes = {sequence: len(sequence.blocks) for sequence in queues.running}
        given = _given(queues, waiting, sizes, need=blocks_for(waiting.read), missing=short.blocks)
        return [GivesWay(sequence, "waiting") for sequence in given]
    given = _given(queues, waiting, dict.fromkeys(queues.running, 1), need=1, missing=1)
    return [GivesWay(sequence, "parked") for sequence in given]


def _given(queues: Queues, waiting: Sequence, sizes: dict[Sequence, int], *, need: int, missing: int) -> list[Sequence]:
    """Whose share, of `sizes`, makes up for what is `missing` of the `need`: all of that or nobody."""
    mine = queues.tenants.of(waiting)
    held: dict[Tenant, int] = {}
    for sequence, size in sizes.items():
        tenant = queues.tenants.of(sequence)
        held[tenant] = held.get(tenant, 0) + size
    owing = [tenant for tenant in held if _owes(tenant, mine)]
    if not owing:
        return []
    other = max(owing, key=lambda tenant: (held[tenant], tenant.served))
    spare = held[other] - held.get(mine, 0) - need
    given: list[Sequence] = []
    for sequence in reversed(queues.running):
        if missing <= 0:
            return given
        if queues.tenants.of(sequence) is other:
            spare -= sizes[sequence]
            if spare < 0 or sequence.live.generate.priority < waiting.live.generate.priority:
                return []
            missing -= sizes[sequence]
            given.append(sequence)
    return given if missing <= 0 else []


def place_in_turn(queues: Queues, waiting: Sequence) -> int:
    """As if every turn cost the same: then tenants take turns, the least served first."""
    mine, priority = queues.tenants.of(waiting), waiting.live.generate.priority
    first = _up_to(priority - 1, mine.waiting)
    before = bisect_left(mine.waiting, waiting.order, key=attrgetter("order"))
    total = before
    for other in queues.tenants.active.values():
        if other is mine or not other.waiting:
            continue
        urgent = _up_to(priority - 1, other.waiting)
        equal = _up_to(priority, other.waiting) - urgent
        leads = equal > 0 and _rank(queues, other.waiting[urgent]) < _rank(queues, mine.waiting[first])
        total += urgent + min(equal, before - first + leads)
    return total + 1


def _up_to(priority: int, line: list[Sequence]) -> int:
    """How many of a line, which is in order, have at most this priority number."""
    return bisect_right(line, priority, key=lambda sequence: sequence.live.generate.priority)


def in_turn(queues: Queues) -> list[Sequence]:
    """All the waiting as `place_in_turn` has them, without asking it for each."""
    tenants = queues.tenants
    if not tenants.several:
        return FIRST_COME.lined_up(queues)
    turns: list[tuple[int, int, Rank, Sequence]] = []
    for tenant in tenants.active.values():
        for priority, line in groupby(tenant.waiting, key=lambda sequence: sequence.live.generate.priority):
            members = list(line)
            first = _rank(queues, members[0])
            turns += [(priority, number, first, sequence) for number, sequence in enumerate(members)]
    turns.sort(key=lambda turn: turn[:3])
    return [sequence for *_, sequence in turns]


FAIR_SHARE: Final = Policy(
    order=FIRST_COME.order,
    choose_victim=parked_then_most_served,
    turns=least_served_first,
    serving=running_by_rank,
    goes_first=goes_first,
    makes_room=makes_room,
    position=place_in_turn,
    lined_up=in_turn,
)
