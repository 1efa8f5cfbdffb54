"""What holds between tenants whatever comes: alike within a bound, and a newcomer's wait."""

from collections.abc import Mapping
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.scheduler import fair_share
from triolet.actors.scheduler.queues import OUTPUT_WEIGHT
from triolet.actors.scheduler.sequence import Sequence
from triolet.protocol.messages import Admit
from triolet.protocol.steps import Step

from .scheduling import Bench, admit, computed, done, flood, newcomer, ready, text

A, B = "a", "b"
EQUAL = {A: 1.0, B: 1.0}


class Account:
    """What each tenant was served, counted from the steps alone."""

    def __init__(self, requests: list[Admit]) -> None:
        self.served = {A: 0, B: 0}
        self._requests = requests

    def take(self, step: Step) -> None:
        for chunk in step.chunks:
            message = self._requests[chunk.sequence - 1]
            prompt = max(min(chunk.start + chunk.count, len(message.prompts[0])) - chunk.start, 0)
            self.served[message.request.tenant] += prompt + OUTPUT_WEIGHT * (chunk.count - prompt)


def cost(message: Admit) -> int:
    return len(message.prompts[0]) + OUTPUT_WEIGHT * message.max_tokens[0]


def widest_gap(
    rows: int, budget: int, in_flight: int, requests: list[Admit], weights: Mapping[str, float] = EQUAL
) -> float:
    """Between two tenants that have all their requests there, while each has one that waits: of tokens by weight."""
    worker = ready(num_blocks=4096, max_running=rows, max_step_tokens=budget)
    bench = Bench(worker=worker, max_steps_in_flight=in_flight, weights=weights)
    bench.send(*requests)
    account, flying, widest = Account(requests), list[Step](), 0.0
    while {s.live.generate.tenant for s in bench.state.table.queues.waiting if not s.started} == {A, B}:
        while step := bench.state.plan():
            account.take(step)
            flying.append(step)
        widest = max(widest, abs(account.served[A] / weights[A] - account.served[B] / weights[B]))
        bench.send(done(flying.pop(0)))
    return widest


def demand(sizes: list[tuple[int, int]], tenant: str) -> list[Admit]:
    """A request for each (prompt, answer)."""
    first = 0 if tenant == A else 500_000
    return [
        admit(f"{tenant}{n}", text(prompt, first + 1000 * n), max_tokens=answer, tenant=tenant, arrival_time=float(n))
        for n, (prompt, answer) in enumerate(sizes)
    ]


WEIGHTS = st.sampled_from((0.25, 0.5, 1.0, 2.0, 3.0, 10.0))
SIZES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.sampled_from((8, 64, 300)), st.integers(1, 3), SIZES, SIZES)
def test_two_tenants_that_both_wait_are_served_alike(
    rows: int, budget: int, in_flight: int, mine: list[tuple[int, int]], yours: list[tuple[int, int]]
) -> None:
    """The bound is derived in fair_share.py: what the sequences that one has begun may still cost."""
    requests = [*demand(mine, A), *demand(yours, B)]
    bound = 2 * rows * max(map(cost, requests))
    assert widest_gap(rows, budget, in_flight, requests) <= bound


def test_first_come_first_served_serves_the_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the bound says something: equal demand in the order of arrival breaks it."""
    requests = [*flood(60, 10, 10), *flood(60, 10, 10, tenant=B, arrival_time=99.0)]
    assert widest_gap(4, 64, 2, requests) <= 4 * 30

    def by_arrival(queues: object, sequence: Sequence) -> object:
        return sequence.order

    def never(other: object, mine: object) -> bool:
        return False

    monkeypatch.setattr(fair_share, "rank", by_arrival)
    monkeypatch.setattr(fair_share, "_owes", never)
    assert widest_gap(4, 64, 2, requests) > 2 * 4 * 30


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.sampled_from((8, 64, 300)), st.integers(1, 3), SIZES, SIZES, WEIGHTS, WEIGHTS)
def test_two_tenants_are_served_as_their_weights(
    rows: int,
    budget: int,
    in_flight: int,
    mine: list[tuple[int, int]],
    yours: list[tuple[int, int]],
    first: float,
    second: float,
) -> None:
    """The same bound, of what they are charged: a token costs the lighter one more."""
    requests = [*demand(mine, A), *demand(yours, B)]
    bound = 2 * rows * max(map(cost, requests)) / min(first, second)
    assert widest_gap(rows, budget, in_flight, requests, {A: first, B: second}) <= bound * 1.001  # prices are rounded


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("weight", "least", "most"), [(1, 0.97, 1.03), (3, 2.9, 3.1), (0.5, 0.48, 0.52)])
def test_who_has_three_times_the_weight_gets_three_times_the_tokens(
    rows: int, weight: float, least: float, most: float
) -> None:
    """Of two that flood, while both have requests that wait."""
    requests = [*flood(600, 10, 10), *flood(600, 10, 10, tenant=B)]
    bench = Bench(worker=ready(num_blocks=4096, max_running=rows, max_step_tokens=64), weights={B: weight})
    bench.send(*requests)
    account = Account(requests)
    for _ in range(1500 * rows):
        account.take(step := bench.plan())
        bench.send(done(step))
        if {s.live.generate.tenant for s in bench.state.table.queues.waiting if not s.started} != {A, B}:
            break
    assert sum(account.served.values()) > 4_000
    assert least <= account.served[B] / account.served[A] <= most


def test_long_and_short_prompts_are_served_alike_too() -> None:
    """As many rows for each would not be enough."""
    requests = [*flood(20, 60, 1), *flood(400, 1, 1, tenant=B)]
    assert widest_gap(1, 64, 1, requests) <= 2 * 62


def test_turns_change_within_a_step() -> None:
    bench = Bench(worker=ready(max_running=5))
    bench.send(*flood(5, length=30), *flood(5, length=10, tenant=B))
    assert list(computed(bench.step())) == [1, 6, 7, 8, 2]  # 30 tokens for one and 30 for the other


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(("a", "c", "d")), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(-1, 1)), min_size=30, max_size=30),
    st.integers(0, 12),
    st.integers(64, 300),
    st.integers(1, 300),
)
def test_a_newcomer_waits_a_bounded_number_of_steps_beside_any_flood(
    whose: list[str], sizes: list[tuple[int, int, int]], rows: int, budget: int, length: int
) -> None:
    """It has a row after as many plans as tenants may be on a level with it, then a share of every step's tokens."""
    flooding = len(set(whose))
    rows += flooding + 1  # so that, if all rows are taken, one tenant has two
    requests = [
        admit(f"r{n}", text(prompt, 1000 * n), max_tokens=answer, tenant=tenant, priority=priority)
        for n, (tenant, (prompt, answer, priority)) in enumerate(zip(whose, sizes, strict=False))
    ]
    bench = Bench(worker=ready(num_blocks=4096, max_running=rows, max_step_tokens=budget))
    bench.send(*requests)
    for _ in range(length % 7):
        if bench.state.table.queues:
            bench.step()
    bench.send(newcomer(length, max_tokens=1))
    steps = 0
    while (standing := bench.state.standing("new", 0.0)) and standing.state == "waiting":
        bench.step()
        steps += 1
        assert steps <= flooding + 1
    while "new" in bench.state.table.requests:
        bench.step()
        steps += 1
        assert steps <= (flooding + 1) * (ceil(length / (budget - rows)) + 1)
