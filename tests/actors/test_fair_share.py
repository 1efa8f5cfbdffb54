"""Tenants beside each other: whose turn it is, who gives up a row for whom, and how far apart they may be served."""

from itertools import pairwise
from math import ceil
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.fair_share import FAIR_SHARE
from triolet.actors.policies import FIRST_COME, Policy
from triolet.actors.tenants import OUTPUT_WEIGHT, Tenants
from triolet.protocol.explanation import Holders, Share
from triolet.protocol.messages import Admit, Cancel
from triolet.protocol.steps import Step

from .scheduling import Bench, admit, done, ready, text

A, B = "a", "b"


def flood(count: int, length: int = 3, max_tokens: int = 1000, tenant: str = A, **fields: Any) -> list[Admit]:
    """Requests of one tenant with nothing in common."""
    return [
        admit(f"{tenant}{number}", text(length, 1000 * number), max_tokens=max_tokens, tenant=tenant, **fields)
        for number in range(count)
    ]


def newcomer(length: int = 3, id: str = "new", **fields: Any) -> Admit:
    return admit(id, text(length, 500_000), tenant=B, **{"arrival_time": 9.0, "max_tokens": 3, **fields})


def computed(step: Step) -> dict[int, int]:
    return {chunk.sequence: chunk.count for chunk in step.chunks}


def places(bench: Bench, *ids: str) -> list[str]:
    return [bench.state.explain(id).get(0, "ended") for id in ids]


# A row.


def test_a_newcomer_takes_the_row_of_the_last_one_which_comes_back_with_nothing_computed_twice() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(6))
    for _ in range(5):
        bench.step()
    bench.send(newcomer())
    assert computed(bench.step()) == {1: 1, 2: 1, 3: 1, 7: 3}
    assert places(bench, "a3", "a4") == ["parked", "rows"]
    while "new" in bench.state.table.requests:
        step = bench.step()
    back = bench.step()
    assert computed(back) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert not back.new  # the worker still has its record
    assert (bench.state.totals.displaced, bench.state.totals.preemptions) == (1, 0)
    assert 4 not in computed(step)


def test_a_row_is_only_taken_from_one_who_keeps_as_many() -> None:
    bench = Bench(worker=ready(max_running=5))
    bench.send(*flood(9))
    bench.step()
    bench.send(*(newcomer(id=f"new{number}", max_tokens=50) for number in range(4)))
    for _ in range(4):  # one a step: while a prompt is being computed the next one waits
        bench.step()
    assert places(bench, "new0", "new1", "new2") == ["running", "running", "rows"]
    assert bench.state.totals.displaced == 2
    for _ in range(20):  # b is served less all the time, but three rows against two are no wrong
        bench.step()
    assert bench.state.totals.displaced == 2


def test_the_only_row_is_not_taken() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(*flood(3))
    bench.step()
    bench.send(newcomer())
    bench.step()
    assert places(bench, "new", "a1") == ["rows", "order"]
    bench.send(Cancel(id="a0"))
    assert computed(bench.step()) == {4: 3}  # its turn comes before those who came earlier


def test_a_row_is_not_taken_from_a_more_urgent_one() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(4, priority=-1))
    bench.step()
    bench.send(newcomer())
    bench.step()
    assert places(bench, "new") == ["rows"]


def test_one_of_a_tenant_that_has_rows_and_was_served_more_waits() -> None:
    bench = Bench(worker=ready(max_running=4, max_step_tokens=512))
    bench.send(newcomer(400, id="long", max_tokens=100), *flood(3))
    bench.step()
    bench.send(newcomer(5, id="more"))
    bench.step()
    assert places(bench, "more") == ["rows"]


def test_all_are_computed_by_their_turn_after_the_worker_was_lost() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(6))
    bench.step()
    bench.send(newcomer())
    bench.step()
    bench.send(ready(max_running=4))
    assert 7 in computed(bench.step())


# A step's tokens.


def test_a_newcomers_prompt_is_computed_before_those_that_have_begun() -> None:
    bench = Bench(worker=ready(max_running=4, max_step_tokens=64))
    bench.send(*flood(2, length=600))
    bench.step()
    bench.send(*flood(1, tenant="c"))
    bench.step()
    bench.step()
    bench.send(newcomer(20))
    bench.step()  # on a level with the first: two prompts of equal right, in the order in which they came
    assert computed(bench.step()) == {3: 1, 4: 20, 1: 43}


def test_two_long_prompts_of_two_tenants_are_computed_side_by_side() -> None:
    bench = Bench(worker=ready(max_running=4, max_step_tokens=64))
    bench.send(*flood(4, length=600))
    bench.step()
    bench.send(newcomer(300))
    got = [computed(bench.step()).get(5, 0) for _ in range(8)]
    assert sum(got) == 4 * 64
    assert all(first + second == 64 for first, second in pairwise(got))


# KV blocks.


def test_a_newcomer_gets_blocks_of_the_one_who_holds_most_if_that_is_enough() -> None:
    bench = Bench(worker=ready(num_blocks=16, max_running=8, max_step_tokens=1024))
    bench.send(*flood(4, length=190, max_tokens=100))  # three blocks each, and one kept for each: all 16
    bench.step()
    bench.send(newcomer(100))
    assert computed(bench.step()) == {1: 1, 2: 1, 3: 1, 5: 100}
    assert bench.state.totals.preemptions == 1
    bench.send(*flood(1, length=500, max_tokens=3, tenant="c"))  # of its eight blocks `a` would not keep as many
    bench.step()
    assert places(bench, "c0") == ["blocks"]
    assert bench.state.totals.preemptions == 1


def test_where_blocks_run_out_the_most_served_tenant_gives_them() -> None:
    bench = Bench(worker=ready(num_blocks=8, max_step_tokens=512))
    bench.send(*flood(2, length=120, max_tokens=200), newcomer(120, max_tokens=200))
    while not bench.state.totals.preemptions:
        bench.step()
    assert places(bench, "a0", "a1", "new") == ["running", "blocks", "running"]  # though `new` came last


# Counters.


def test_who_comes_back_has_saved_nothing_up() -> None:
    bench = Bench(worker=ready(max_running=2))
    bench.send(newcomer(max_tokens=1))
    bench.step()
    bench.send(*flood(9, max_tokens=5))
    for _ in range(8):
        bench.step()
    tenants = bench.state.table.queues.tenants
    bench.send(newcomer(id="again"))
    waiting = tenants.of(next(iter(bench.state.table.requests["again"].choices.values())))
    others = tenants.of(next(iter(bench.state.table.requests["a8"].choices.values())))
    assert waiting.served == others.served > 0


def test_what_is_computed_twice_is_paid_for_once() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), max_tokens=50))
    for _ in range(11):
        bench.step()
    bench.send(ready())
    bench.step()
    tenants: Tenants = bench.state.table.queues.tenants
    tenants.charge(bench.state.table.queues.running)
    assert tenants.active[""].served == 100 + OUTPUT_WEIGHT * 11


def test_a_cached_prefix_costs_nothing() -> None:
    bench = Bench()
    bench.send(admit("a", text(200)))
    bench.step()
    bench.send(Cancel(id="a"), admit("b", text(200)))
    bench.step()
    tenants: Tenants = bench.state.table.queues.tenants
    tenants.charge(bench.state.table.queues.running)
    assert tenants.active[""].served == 200 + 8


# What is said to those who ask.


def test_who_waits_for_another_tenants_turn_is_told_by_how_much() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(*flood(3, length=10))
    for _ in range(6):
        bench.step()
    bench.send(newcomer())
    assert (of(bench, "new").position, of(bench, "new").blocked_on.kind) == (1, "step")
    bench.step()
    assert of(bench, "new").blocked_on.kind == "rows"
    told = of(bench, "a1")
    assert told.position == 2
    assert told.blocked_on.kind == "share"
    assert told.blocked_on.first == "rows"
    assert told.blocked_on.share == Share(ahead=2, rows=1, keys=2)  # a token since the newcomer came
    assert told.blocked_on.holders == Holders(running=1, parked=0, yours=1)
    assert of(bench, "a2").position == 3


def test_a_parked_one_whose_row_another_has_says_so() -> None:
    bench = Bench(worker=ready(max_running=3), outbox_tokens=20)
    bench.send(*flood(3))
    bench.step()
    bench.send(newcomer())
    bench.step()
    told = of(bench, "a2")
    assert told.state == "parked"
    assert (told.blocked_on.kind, told.blocked_on.first, told.blocked_on.need, told.blocked_on.total) == (
        "share", "rows", 1, 3,
    )  # fmt: skip
    assert told.blocked_on.share is not None
    assert told.blocked_on.share.rows == 2


def test_positions_take_turns_between_tenants() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(*flood(1, tenant="c", priority=-2))
    bench.step()
    bench.send(*flood(4), *(newcomer(id=f"new{number}") for number in range(2)), newcomer(id="urgent", priority=-1))
    ids = ["urgent", "a0", "new0", "a1", "new1", "a2", "a3"]
    assert [of(bench, id).position for id in ids] == [1, 2, 3, 4, 5, 6, 7]
    assert [sequence.live.id for sequence in bench.state.queue()] == ids  # as the dashboard shows them


def of(bench: Bench, id: str) -> Any:  # Any: a Standing, with its obstacle
    found = bench.state.standing(id, bench.now)
    assert found is not None
    return found


# Whatever comes.


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


def widest_gap(rows: int, budget: int, in_flight: int, requests: list[Admit], policy: Policy) -> int:
    """Between two tenants that have all their requests there, while each has one that waits."""
    worker = ready(num_blocks=4096, max_running=rows, max_step_tokens=budget)
    bench = Bench(worker=worker, max_steps_in_flight=in_flight, policy=policy)
    bench.send(*requests)
    account, flying, widest = Account(requests), list[Step](), 0
    while {s.live.generate.tenant for s in bench.state.table.queues.waiting if not s.started} == {A, B}:
        while step := bench.state.plan():
            account.take(step)
            flying.append(step)
        widest = max(widest, abs(account.served[A] - account.served[B]))
        bench.send(done(flying.pop(0)))
    return widest


def demand(sizes: list[tuple[int, int]], tenant: str) -> list[Admit]:
    """A request for each (prompt, answer)."""
    first = 0 if tenant == A else 500_000
    return [
        admit(f"{tenant}{n}", text(prompt, first + 1000 * n), max_tokens=answer, tenant=tenant, arrival_time=float(n))
        for n, (prompt, answer) in enumerate(sizes)
    ]


SIZES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.sampled_from((8, 64, 300)), st.integers(1, 3), SIZES, SIZES)
def test_two_tenants_that_both_wait_are_served_alike(
    rows: int, budget: int, in_flight: int, mine: list[tuple[int, int]], yours: list[tuple[int, int]]
) -> None:
    """The bound is derived in fair_share.py: what the sequences that one has begun may still cost."""
    requests = [*demand(mine, A), *demand(yours, B)]
    bound = 2 * rows * max(map(cost, requests))
    assert widest_gap(rows, budget, in_flight, requests, FAIR_SHARE) <= bound


def test_first_come_first_served_serves_the_flood() -> None:
    """So the bound says something: equal demand in the order of arrival breaks it."""
    requests = [*flood(60, 10, 10), *flood(60, 10, 10, tenant=B, arrival_time=99.0)]
    assert widest_gap(4, 64, 2, requests, FIRST_COME) > 2 * 4 * 30
    assert widest_gap(4, 64, 2, requests, FAIR_SHARE) <= 4 * 30


def test_long_and_short_prompts_are_served_alike_too() -> None:
    """As many rows for each would not be enough."""
    requests = [*flood(20, 60, 1), *flood(400, 1, 1, tenant=B)]
    assert widest_gap(1, 64, 1, requests, FAIR_SHARE) <= 2 * 62


def test_turns_change_within_a_step() -> None:
    bench = Bench(worker=ready(max_running=5))
    bench.send(*flood(5, length=30), *flood(5, length=10, tenant=B))
    assert list(computed(bench.step())) == [1, 6, 7, 8, 2]  # 30 tokens for one and 30 for the other


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(("a", "c", "d")), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=30, max_size=30),
    st.integers(0, 12),
    st.integers(64, 300),
    st.integers(1, 300),
)
def test_a_newcomer_waits_a_bounded_number_of_steps_beside_any_flood(
    whose: list[str], sizes: list[tuple[int, int]], rows: int, budget: int, length: int
) -> None:
    """It has a row after as many plans as tenants may be on a level with it, then a share of every step's tokens."""
    flooding = len(set(whose))
    rows += flooding + 1  # so that, if all rows are taken, one tenant has two
    requests = [
        admit(f"r{n}", text(prompt, 1000 * n), max_tokens=answer, tenant=tenant)
        for n, (tenant, (prompt, answer)) in enumerate(zip(whose, sizes, strict=False))
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
