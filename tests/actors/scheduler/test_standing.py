"""Why a request waits: the numbers are the planner's own, the estimate is measured, and what is unknown is null."""

import msgspec

from triolet.actors.observe.view_rows import TenantNumbers, queue_rows
from triolet.actors.scheduler.standing import StartRate
from triolet.protocol.explanation import BlockedOn, Holders, PrefillProgress, Standing
from triolet.protocol.messages import Credit, WorkerLost

from .scheduling import Bench, admit, new_state, ready, text


def of(bench: Bench, id: str) -> Standing:
    found = bench.state.standing(id, bench.now)
    assert found is not None
    return found


def test_prefill_then_decode() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(100)))
    assert of(bench, "a").blocked_on == BlockedOn(kind="step")
    bench.step()
    assert of(bench, "a").state == "prefill"
    assert of(bench, "a").prefill == PrefillProgress(computed=64, total=100)
    bench.step()
    assert (of(bench, "a").state, of(bench, "a").prefill) == ("decode", None)
    assert bench.state.standing("b", 0.0) is None


def test_rows_and_the_order_behind_them() -> None:
    bench = Bench(worker=ready(max_running=2))
    for number, id in enumerate("abcd"):
        bench.send(admit(id, text(3, 100 * number), tenant="mine" if id in "ad" else "other", arrival_time=number))
    bench.step()
    holders = Holders(running=2, parked=0, yours=1)
    rows = BlockedOn(kind="rows", unit="rows", need=1, free=0, total=2, holders=holders)
    assert (of(bench, "c").position, of(bench, "c").blocked_on) == (1, rows)
    behind = msgspec.structs.replace(rows, kind="order", first="rows")
    assert (of(bench, "d").position, of(bench, "d").blocked_on) == (2, behind)


def test_blocks_are_counted_as_the_planner_counts_them() -> None:
    """Of 8 blocks `a` holds 4 and keeps one more for its next token, so 3 are to be had where 7 are needed."""
    bench = Bench(worker=ready(num_blocks=8))
    bench.send(admit("a", text(200), max_tokens=3))
    bench.step()
    bench.send(admit("large", text(400, 1000), max_tokens=2), admit("small", text(3, 5000), max_tokens=2))
    bench.step()
    blocked = of(bench, "large").blocked_on
    assert blocked == BlockedOn(
        kind="blocks", unit="blocks", need=7, free=3, total=8, holders=Holders(running=1, parked=0, yours=1)
    )
    assert blocked is not None
    assert of(bench, "small").blocked_on == msgspec.structs.replace(blocked, kind="order", first="blocks")
    bench.step()  # a ends
    bench.step()
    assert of(bench, "large").state == "prefill"


def test_blocks_of_parked_sequences_are_to_be_had() -> None:
    """Of 10 blocks `b` holds 1 and keeps one more; the 4 of `a`, which is parked, would be taken: 8 are left."""
    bench = Bench(worker=ready(num_blocks=10, max_step_tokens=1024), outbox_tokens=1)
    bench.send(admit("a", text(200), max_tokens=50))
    bench.step()
    bench.send(admit("b", text(60, 1000), max_tokens=50), Credit(id="b", tokens=50))
    bench.send(admit("c", text(560, 5000), max_tokens=2))
    bench.step()
    assert (of(bench, "a").state, of(bench, "b").state) == ("parked", "decode")
    assert of(bench, "c").blocked_on == BlockedOn(
        kind="blocks", unit="blocks", need=9, free=8, total=10, holders=Holders(running=1, parked=1, yours=2)
    )
    assert of(bench, "a").blocked_on == BlockedOn(kind="credit", unit="tokens", need=1, free=0)
    (row,) = queue_rows(bench.state, bench.now, TenantNumbers())  # the dashboard says the same
    assert (row.id, row.blocks_wanted, row.blocks_available) == ("c", 9, 8)


def test_the_budget_of_a_step() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(200)), admit("b", text(70, 1000)))
    bench.step()
    assert of(bench, "b").blocked_on == BlockedOn(kind="budget", unit="tokens", need=70, free=0, total=64)


def test_without_a_worker_and_without_credit() -> None:
    bench = Bench(outbox_tokens=1)
    bench.send(admit("a", text(3), max_tokens=9))
    bench.step()
    bench.send(WorkerLost(reason="killed"))
    assert of(bench, "a").blocked_on == BlockedOn(kind="worker")
    bench.send(ready())
    assert bench.state.plan() is None
    assert of(bench, "a").blocked_on == BlockedOn(kind="credit", unit="tokens", need=1, free=0)
    assert of(bench, "a").eta_ms is None
    bench.send(Credit(id="a", tokens=5))
    bench.step()
    assert of(bench, "a").state == "decode"


def test_several_choices_show_the_foremost() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3), n=3))
    bench.step()
    assert (of(bench, "a").state, of(bench, "a").choices) == ("decode", {"decode": 1, "waiting": 2})


def test_the_estimate_comes_from_the_starts_before() -> None:
    """One row, one second for each: the fifth start makes four intervals, enough to tell."""
    bench = Bench(worker=ready(max_running=1))
    for number in range(8):
        bench.send(admit(str(number), text(3, 100 * number), max_tokens=1, arrival_time=number))
    for _ in range(5):
        assert of(bench, "6").eta_ms is None
        bench.now += 1.0
        bench.send(Credit(id="nobody", tokens=1))  # brings the time
        bench.step()
    assert [of(bench, id).position for id in "567"] == [1, 2, 3]
    assert [of(bench, id).eta_ms for id in "567"] == [1000, 2000, 3000]


def test_an_empty_queue_ends_the_measurement() -> None:
    rate = StartRate()
    for second in range(5):
        rate.note(2, 5, float(second))
    assert rate.seconds_until(6, 4.0) == 3.0
    assert rate.seconds_until(6, 8.0) == 6.0  # nothing has moved for four seconds
    rate.note(1, 0, 4.0)
    assert rate.seconds_until(6, 4.0) is None
    for _ in range(5):
        rate.note(1, 1, 5.0)
    assert rate.seconds_until(1, 5.0) is None  # all at once: no rate


def test_nothing_is_asked_of_an_empty_scheduler() -> None:
    assert new_state().standing("a", 0.0) is None
