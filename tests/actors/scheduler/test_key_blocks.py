"""A key with a limit of KV blocks: it never holds more, all its requests end, and nobody waits for it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.scheduler.plan import Joining
from triolet.actors.scheduler.sequence import Sequence
from triolet.protocol.messages import Credit

from .scheduling import Bench, admit, computed, done, flood, newcomer, ready, text


def limited(blocks: int, **options: Any) -> Bench:
    return Bench(worker=ready(num_blocks=60, max_running=8, max_step_tokens=1024), most_blocks={"a": blocks}, **options)


def held(bench: Bench, tenant: str = "a") -> int:
    queues = bench.state.table.queues
    return sum(len(one.blocks) for one in (*queues.running, *queues.parked) if one.live.generate.tenant == tenant)


def test_who_would_hold_too_much_waits_and_others_do_not() -> None:
    bench = limited(5)
    bench.send(*flood(4, length=100, max_tokens=3), newcomer(500, max_tokens=3))
    assert set(computed(bench.step())) == {1, 2, 5}  # two blocks each, and one that each running one may need
    assert bench.whereabouts("a2") == {0: "key"}
    assert bench.state.standing("a2", 0.0).blocked_on.kind == "key"  # type: ignore[union-attr]  # it is there
    for _ in range(20):
        if not bench.state.table.requests:
            break
        bench.step()
    assert not bench.state.table.requests


def test_a_small_one_does_not_overtake_a_large_one_of_its_key() -> None:
    bench = limited(5)
    bench.send(*flood(1, length=60, max_tokens=30), admit("large", text(250, 7000), tenant="a"))
    bench.send(admit("small", text(10, 9000), tenant="a"))
    bench.step()
    assert bench.whereabouts("small") == {0: "key"}


def test_a_plan_asks_about_one_of_a_full_keys_waiting_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, asked = limited(5), list[Sequence]()
    real = Joining._beyond_its_key

    def counted(self: Joining, sequence: Sequence) -> bool:
        asked.append(sequence)
        return real(self, sequence)

    monkeypatch.setattr(Joining, "_beyond_its_key", counted)
    bench.send(*flood(40, length=100, max_tokens=3))
    bench.step()
    assert len(asked) <= 4  # two that run, and the third, by both of its readers
    assert bench.whereabouts("a39") == {0: "key"}


def test_a_more_urgent_request_takes_the_blocks_of_its_own_key() -> None:
    bench = limited(5)
    bench.send(*flood(2, length=100, max_tokens=30))
    bench.step()
    bench.send(admit("urgent", text(100, 7000), tenant="a", priority=-1))
    assert 3 in computed(bench.step())
    assert held(bench) <= 5
    while bench.state.table.requests:
        bench.step()
        assert held(bench) <= 5


def test_nobody_leaves_for_a_more_urgent_request_that_does_not_fit_then() -> None:
    bench = limited(10)
    bench.send(admit("old", text(350), max_tokens=30, tenant="a"))
    bench.send(admit("less", text(100, 3000), max_tokens=30, tenant="a", priority=5))
    bench.step()
    bench.send(admit("more", text(300, 7000), max_tokens=30, tenant="a"))
    bench.step()
    assert bench.whereabouts("more") == {0: "key"}
    assert bench.state.totals.preemptions == 0


def test_where_answers_grow_beyond_the_limit_the_keys_last_one_gives_way() -> None:
    bench = limited(6)
    bench.send(*flood(2, length=120, max_tokens=200), newcomer(120, max_tokens=300))
    most = 0
    while "a1" in bench.state.table.requests or "a0" in bench.state.table.requests:
        bench.step()
        most = max(most, held(bench))
    assert most == 6
    assert bench.state.totals.preemptions == 1


def test_a_running_one_that_its_key_holds_back_says_so() -> None:
    """The first, that is more urgent, has taken its blocks in this step."""
    bench = limited(6)
    bench.send(*flood(2, length=120, max_tokens=200))
    while bench.whereabouts("a1") != {0: "key"}:
        bench.step()


def test_what_is_parked_for_its_reader_holds_up_no_request_of_its_key() -> None:
    bench = limited(3, outbox_tokens=2)
    bench.send(*flood(2, length=100, max_tokens=30))
    while step := bench.state.plan():
        bench.send(done(step))
        assert held(bench) <= 3
    assert [len(live.choices[0].generated) for live in bench.state.table.requests.values()] == [2, 2]
    assert bench.whereabouts("a0") == {0: "credit"}  # it has given up its blocks
    bench.send(Credit(id="a0", tokens=50), Credit(id="a1", tokens=50))
    while bench.state.table.requests:
        bench.step()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 250), st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=8),
    st.integers(5, 12),
)
def test_no_key_holds_more_than_it_may_and_everybody_ends(lives: list[tuple[int, int, int]], blocks: int) -> None:
    bench = limited(blocks)
    for number, (length, tokens, n) in enumerate(lives):
        tenant = "ab"[number % 2]
        bench.send(
            admit(f"{number}", text(length, 1000 * number), max_tokens=tokens, n=n, tenant=tenant, priority=number % 3)
        )
    for _ in range(5000):
        if not bench.state.table.requests:
            break
        bench.step()
        assert held(bench) <= blocks
    assert not bench.state.table.requests
