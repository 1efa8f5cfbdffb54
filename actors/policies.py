"""Scheduling policies are values: an order, a choice of victim, and who makes way for whom.

A new policy is a new function here and a field of `Policy`, never a branch in the planner.
"""

from collections.abc import Callable, Set
from typing import NamedTuple

from .queues import Queues
from .sequence import OrderKey, Sequence


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


def lower_priority(running: Sequence, waiting: Sequence) -> bool:
    """Whether `running` gives up its place for `waiting`. Arrival alone never does that."""
    return running.live.generate.priority > waiting.live.generate.priority


class Policy(NamedTuple):
    """The decisions that `plan_step` leaves open."""

    order: Callable[[Sequence], OrderKey] = by_priority_and_arrival
    choose_victim: Callable[[Queues, Set[int]], Sequence | None] = parked_then_latest
    makes_way: Callable[[Sequence, Sequence], bool] = lower_priority


DEFAULT_POLICY = Policy()
