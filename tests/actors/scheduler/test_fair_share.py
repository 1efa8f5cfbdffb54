"""Tenants beside each other: whose turn it is, who gives up a row for whom, and what is said to those who ask."""

import random
from itertools import pairwise
from typing import Any

import pytest

from triolet.actors.scheduler.fair_share import lined_up, position_of
from triolet.actors.scheduler.queues import OUTPUT_WEIGHT, TenantQueue
from triolet.protocol.explanation import FairShare, Holders
from triolet.protocol.messages import Cancel, Credit

from .scheduling import Bench, admit, computed, flood, newcomer, ready, text

B = "b"


def places(bench: Bench, *ids: str) -> list[str]:
    return [bench.whereabouts(id).get(0, "ended") for id in ids]


# A row.


def test_a_newcomer_takes_the_row_of_the_last_one_which_comes_back_with_nothing_computed_twice() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(6))
    for _ in range(5):
        bench.step()
    bench.send(newcomer())
    assert computed(bench.step()) == {1: 1, 2: 1, 3: 1, 7: 3}
    assert places(bench, "a3", "a4") == ["parked", "rows"]
    step = bench.step()
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
    assert places(bench, "new", "a1") == ["rows", "share"]
    bench.send(Cancel(id="a0"))
    assert computed(bench.step()) == {4: 3}  # its turn comes before those who came earlier


def test_no_priority_keeps_another_tenant_from_a_row() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(9, priority=-(2**31)))
    bench.step()
    bench.send(newcomer(priority=2**31 - 1))
    assert 10 in computed(bench.step())
    assert places(bench, "a3", "new") == ["parked", "running"]


def test_no_priority_takes_another_tenants_row() -> None:
    bench = Bench(worker=ready(max_running=2))
    bench.send(*flood(1, tenant="c"), newcomer(max_tokens=100))
    bench.step()
    bench.send(*flood(3, priority=-(2**31)))
    for _ in range(5):
        bench.step()
    assert places(bench, "c0", "new", "a0") == ["running", "running", "rows"]


def test_a_parked_one_of_any_priority_gets_its_row_back_in_its_tenants_turn() -> None:
    bench = Bench(worker=ready(max_running=2), outbox_tokens=4)
    bench.send(*flood(2, priority=-9, max_tokens=30), newcomer(id="b1", max_tokens=30))
    bench.send(Credit(id="a0", tokens=1000))
    while places(bench, "a1", "b1") != ["parked", "parked"]:  # until both have spent their credit
        bench.step()
    bench.send(Credit(id="a1", tokens=100), Credit(id="b1", tokens=100))
    bench.step()
    assert places(bench, "a0", "a1", "b1") == ["running", "parked", "running"]


def test_an_urgent_one_takes_the_row_of_its_own_tenants_last() -> None:
    bench = Bench(worker=ready(max_running=4))
    bench.send(*flood(2), *flood(2, tenant="c", length=50))
    bench.step()
    bench.send(*(admit("urgent", text(3, 7000), tenant="a", priority=-1),))
    assert 5 in computed(bench.step())
    assert places(bench, "a0", "a1", "c0", "c1") == ["running", "rows", "running", "running"]


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


def test_no_prompt_takes_the_last_blocks_before_a_stream_of_one_who_was_served_less() -> None:
    """Two blocks are free, one for each of the two. But the prompt came first, and its chunk needs both."""
    bench = Bench(worker=ready(num_blocks=9, max_step_tokens=130))
    bench.send(*flood(1, length=470, max_tokens=5))
    bench.step()
    bench.send(newcomer(64, max_tokens=60))
    got = [computed(bench.step()) for _ in range(4)]
    assert got == [{1: 130}, {2: 64, 1: 66}, {2: 1, 1: 122}, {2: 1}]


# Counters.


def test_who_comes_back_has_saved_nothing_up() -> None:
    bench = Bench(worker=ready(max_running=2))
    bench.send(newcomer(max_tokens=1))
    bench.step()
    bench.send(*flood(9, max_tokens=5))
    for _ in range(8):
        bench.step()
    queues = bench.state.table.queues
    bench.send(newcomer(id="again"))
    waiting = queues.tenant_of(next(iter(bench.state.table.requests["again"].choices.values())))
    others = queues.tenant_of(next(iter(bench.state.table.requests["a8"].choices.values())))
    assert waiting.served == others.served > 0


def test_what_is_computed_twice_is_paid_for_once() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), max_tokens=50))
    for _ in range(11):
        bench.step()
    bench.send(ready())
    bench.step()
    queues = bench.state.table.queues
    queues.charge(queues.running)
    assert queues.tenants[""].served == 100 + OUTPUT_WEIGHT * 11


def test_a_cached_prefix_costs_nothing() -> None:
    bench = Bench()
    bench.send(admit("a", text(200)))
    bench.step()
    bench.send(Cancel(id="a"), admit("b", text(200)))
    bench.step()
    queues = bench.state.table.queues
    queues.charge(queues.running)
    assert queues.tenants[""].served == 200 + 8


@pytest.mark.parametrize("weight", [0.01, 0.3, 1, 2, 3, 7, 100])
def test_tokens_cost_the_same_in_whatever_pieces_they_are_charged(weight: float) -> None:
    price = TenantQueue(weight).price
    assert sum([price] * 10_000) == 10_000 * price
    assert price == pytest.approx(1 / weight, rel=1e-3)


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
    assert told.blocked_on.share == FairShare(ahead=2, rows=1, keys=2)  # a token since the newcomer came
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
    bench.send(*flood(1, tenant="c"))
    bench.step()
    bench.send(*flood(4), *(newcomer(id=f"new{number}") for number in range(2)), newcomer(id="urgent", priority=-1))
    ids = ["urgent", "a0", "new0", "a1", "new1", "a2", "a3"]
    assert [of(bench, id).position for id in ids] == [1, 2, 3, 4, 5, 6, 7]
    assert [sequence.live.id for sequence in lined_up(bench.state.table.queues)] == ids  # as the dashboard shows them


def of(bench: Bench, id: str) -> Any:  # Any: a Standing, with its obstacle
    found = bench.state.standing(id, bench.now)
    assert found is not None
    return found


def test_a_parked_one_that_gave_its_row_up_for_its_own_reader_waits_for_a_row() -> None:
    bench = Bench(worker=ready(max_running=2), outbox_tokens=4)
    for request in (admit("a1", text(3), tenant="a"), admit("b1", text(3, 500), tenant="b", max_tokens=1000)):
        bench.send(request)
    bench.send(Credit(id="b1", tokens=10**6))
    for _ in range(6):
        bench.step()
    bench.send(admit("b2", text(3, 900), tenant="b", max_tokens=1000), Credit(id="b2", tokens=10**6))
    bench.step()
    bench.send(Credit(id="a1", tokens=50))
    bench.step()
    assert of(bench, "a1").state == "parked"
    assert of(bench, "a1").blocked_on.kind == "rows"


@pytest.mark.parametrize("seed", range(5))
def test_the_queue_is_lined_up_by_position(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(worker=ready(max_running=2))
    for number in range(60):
        tenant, priority = rng.choice("abcd"), rng.choice((0, 0, 0, -1, 2))
        bench.send(admit(f"r{number}", text(3, 1000 * number), tenant=tenant, priority=priority, arrival_time=number))
        if rng.random() < 0.4:
            bench.step()
    queues = bench.state.table.queues
    line = lined_up(queues)
    assert len(line) > 20
    assert [position_of(queues, sequence) for sequence in line] == list(range(1, len(line) + 1))
