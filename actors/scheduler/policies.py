"""Scheduling policies are values: an order, a choice of victim, whose turn it is, and who makes way for whom.

A new policy is a new set of functions and a `Policy` of them, never a branch in the planner. `FIRST_COME` knows no
tenants; `fair_share.py` has the one that the engine uses, which is this one while only one tenant is here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from operator import attrgetter
from typing import Final, NamedTuple

from .queues import Queues
from .sequence import OrderKey, Place, Sequence


class Short(NamedTuple):
    """What a waiting sequence lacks to join in this step."""

    row: bool
    blocks: int  # beyond those that are free and those of parked sequences; 0 or less: none


class GivesWay(NamedTuple):
    """A running sequence that gives up its row: parked with its KV blocks, or waiting without them."""

    sequence: Sequence
    place: Place


class Policy(NamedTuple):
    """The decisions that `plan_step` leaves open."""

    order: Callable[[Sequence], OrderKey]  # of the queues, fixed for a sequence's life
    choose_victim: Callable[[Queues, Set[int]], Sequence | None]  # whose blocks to take
    turns: Callable[[Queues], Iterator[Sequence]]  # the waiting, in the order in which they may join
    serving: Callable[[Queues], Iterable[Sequence]]  # the running, in the order in which they get tokens and blocks
    goes_first: Callable[[Queues, Sequence], bool]  # whether a waiting one joins before the running ones are served
    makes_room: Callable[[Queues, Sequence, Short], list[GivesWay]]  # for one that goes first; empty: nobody does
    position: Callable[[Queues, Sequence], int]  # of a waiting one in the turns as they now look; 1 is next
    lined_up: Callable[[Queues], list[Sequence]]  # all the waiting, by that position


def by_priority_and_arrival(sequence: Sequence) -> OrderKey:
    """Lower priority numbers first, then first come, first served; a preempted sequence keeps its place."""
    generate = sequence.live.generate
    return (generate.priority, generate.arrival_time, sequence.id)


def parked_then_latest(queues: Queues, spared: Set[int]) -> Sequence | None:
    """Whose blocks to take: a parked sequence's first, since nobody waits for it, then the last in order.

    Never one of `spared`, the sequences that already have a chunk in the step being planned.
    """
    if queues.parked:
        return queues.parked[-1]
    return next((sequence for sequence in reversed(queues.running) if sequence.id not in spared), None)


def in_order(queues: Queues) -> Iterator[Sequence]:
    """The waiting ones in their order. Whoever is given a turn may leave the queue before the next is asked for."""
    position = 0
    while position < len(queues.waiting):
        sequence = queues.waiting[position]
        yield sequence
        position += sequence.place == "waiting"


def all_running(queues: Queues) -> Iterable[Sequence]:
    return queues.running


def before_lower_priority(queues: Queues, waiting: Sequence) -> bool:
    """Whether the last running one is less urgent. Arrival alone never makes anybody give up a place."""
    return queues.running[-1].live.generate.priority > waiting.live.generate.priority


def the_last(queues: Queues, waiting: Sequence, short: Short) -> list[GivesWay]:
    """One after the other, until there is room or nobody less urgent is left."""
    return [GivesWay(queues.running[-1], "waiting")]


def place_in_order(queues: Queues, waiting: Sequence) -> int:
    return bisect_left(queues.waiting, waiting.order, key=attrgetter("order")) + 1


def all_waiting(queues: Queues) -> list[Sequence]:
    return queues.waiting


FIRST_COME: Final = Policy(
    order=by_priority_and_arrival,
    choose_victim=parked_then_latest,
    turns=in_order,
    serving=all_running,
    goes_first=before_lower_priority,
    makes_room=the_last,
    position=place_in_order,
    lined_up=all_waiting,
)
