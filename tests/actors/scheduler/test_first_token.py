"""Deadlines in the scheduler: who is refused at once, who is ended while it waits, and who is cut."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from triolet.actors.scheduler.first_token import LOOKED_AT, first_token_seconds, tokens_before
from triolet.actors.scheduler.sharing import MEMORY
from triolet.actors.supervisor.step_cost import TypicalCost
from triolet.protocol.messages import Admit, ChoiceTokens, DropRequest
from triolet.protocol.sampling import Sampling

from .scheduling import Bench, admit, choices_of, computed, done, flood, newcomer, ready, text

STEPS = st.lists(st.tuples(st.integers(1, 2000), st.floats(1e-4, 1.0)), max_size=20)
STEP_SECONDS = 0.1


def cost_of(steps: Sequence[tuple[int, float]]) -> TypicalCost:
    cost = TypicalCost()
    for work, seconds in steps:
        cost.note(work, seconds)
    return cost


@given(STEPS, st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 64), st.integers(1, 512))
def test_more_before_it_takes_no_less(
    steps: list[tuple[int, float]], own: int, before: int, decoding: int, budget: int
) -> None:
    cost = cost_of(steps)
    alone = first_token_seconds(own, decoding, budget, cost)
    assert alone <= first_token_seconds(own + before, decoding, budget, cost) * (1 + 1e-9)


@given(st.integers(0, 10**6), st.integers(0, 64), st.integers(1, 512))
def test_nothing_takes_time_before_anything_is_known(tokens: int, decoding: int, budget: int) -> None:
    assert first_token_seconds(tokens, decoding, budget, TypicalCost()) == 0


def test_full_steps_and_the_rest_of_one_are_counted() -> None:
    cost = cost_of([(256, 0.1), (56, 0.03)])
    assert round(first_token_seconds(256 + 256 + 56, 0, 256, cost), 6) == 0.23
    assert round(first_token_seconds(200, 56, 256, cost), 6) == 0.1


def learned(**limits: Any) -> Bench:
    """It knows that steps of 256 tokens, one behind the other, take a tenth of a second each: 0.078 s at least."""
    bench = Bench(worker=ready(num_blocks=400, max_running=4, **limits))
    bench.send(admit("first", text(512, 900_000), max_tokens=1))
    for _ in range(2):
        bench.send(structs.replace(done(bench.plan()), duration=STEP_SECONDS))
    bench.texts()
    return bench


def refusals(bench: Bench) -> dict[str, ChoiceTokens]:
    return {one.id: one for message in bench.texts() for one in choices_of(message) if one.error}


def with_first_token_in(seconds: float, length: int = 256, id: str = "new", **fields: Any) -> Admit:
    return admit(id, text(length, 500_000), first_token_deadline=seconds, arrival_time=9.0, **fields)


def test_nobody_is_refused_before_a_step_was_done() -> None:
    bench = Bench()
    bench.send(with_first_token_in(0.0001, length=1000))
    assert not refusals(bench)


def test_a_short_prompt_is_taken_into_an_empty_queue() -> None:
    bench = learned()
    bench.send(with_first_token_in(0.01, length=10))
    assert not refusals(bench)


def test_a_prompt_that_takes_longer_is_refused_with_the_estimate() -> None:
    bench = learned()
    bench.send(with_first_token_in(0.15, length=512))
    refused = refusals(bench)["new"]
    assert (refused.error, refused.retry_after) == ("deadline_unmeetable", 1)
    assert "in 0.157 s at the earliest (0 tokens" in refused.message
    assert "0.15 s are left" in refused.message
    assert not bench.state.table.requests
    assert bench.state.plan() is None  # it costs no step


def test_after_a_pause_what_a_step_takes_is_learned_anew() -> None:
    """A cold first step may have taken seconds. Whoever is refused by it would bring the one that tells better."""
    bench = learned()
    bench.now += MEMORY
    bench.send(with_first_token_in(0.15, length=512))
    assert not refusals(bench)


def test_many_short_prompts_behind_long_ones_count_as_they_are() -> None:
    bench = learned()
    bench.send(*flood(LOOKED_AT, length=1000, max_tokens=1), *flood(50, length=10, max_tokens=1, tenant="c"))
    bench.send(with_first_token_in(1e9, id="last", length=10, tenant="c"))
    (last,) = bench.state.table.requests["last"].choices.values()
    waiting = bench.state.table.queues
    before, _ = tokens_before(waiting, bench.state.table.pool, last)
    assert before <= LOOKED_AT * 1000 + 50 * 10


def test_what_waits_before_it_counts() -> None:
    bench = learned()
    bench.send(*flood(100, length=256, max_tokens=1, tenant=""))
    bench.send(with_first_token_in(7.8), with_first_token_in(8.0, id="later"))
    refused = refusals(bench)
    assert (refused["new"].retry_after, [*refused]) == (1, ["new"])
    assert "25600 tokens of other prompts" in refused["new"].message
    bench.send(with_first_token_in(2.0, id="soon"))
    assert refusals(bench)["soon"].retry_after == 7


def test_another_tenants_flood_counts_as_its_turns_come() -> None:
    bench = learned()
    bench.send(*flood(100, length=256, max_tokens=1))
    bench.step()
    bench.send(with_first_token_in(0.35, tenant="b"))
    assert not refusals(bench)


def test_what_the_cache_has_and_what_is_shared_counts_once() -> None:
    bench = learned()
    bench.send(*(admit(f"a{number}", text(256, 1000), max_tokens=1) for number in range(12)))
    bench.send(admit("new", text(512, 900_000), max_tokens=1, arrival_time=9.0))  # as "first" before
    queues, pool = bench.state.table.queues, bench.state.table.pool
    last = bench.state.table.requests["new"].choices[0]
    before, own = tokens_before(queues, pool, last)
    assert (before, own) == (256 + 11 * 64, 64)  # the last block of each is computed


def test_the_whole_answer_counts_only_as_far_as_it_must_be() -> None:
    bench = learned()
    bench.send(admit("new", text(256, 500_000), deadline=0.15, max_tokens=1000))
    assert not refusals(bench)
    shortest = Sampling(min_tokens=900)
    bench.send(admit("long", text(256, 600_000), deadline=0.3, max_tokens=1000, sampling=shortest))
    assert "An answer of min_tokens 900 cannot come" in refusals(bench)["long"].message


def test_who_waits_too_long_for_its_first_token_ends_before_it_costs_a_prompt() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(*flood(1, tenant=""), with_first_token_in(0.5))
    bench.step()
    bench.texts()
    bench.now = 0.5
    bench.state.expire(bench.now)
    assert bench.texts() == [DropRequest(id="new", reason="deadline")]
    assert "new" not in bench.state.table.requests


def test_who_has_its_first_token_goes_on_to_the_end_of_its_time() -> None:
    bench = Bench()
    bench.send(with_first_token_in(0.5, length=3, deadline=2.0), with_first_token_in(0.5, length=4, id="endless"))
    bench.step()
    for moment, ended in ((0.5, set[str]()), (1.9, set[str]()), (2.0, {"new"})):
        bench.texts()
        bench.state.expire(moment)
        assert {text.id for text in bench.texts() if isinstance(text, DropRequest)} == ended, moment
    assert bench.state.table.timers.next_due() > 1e9
    assert computed(bench.step()) == {2: 1}


def test_lines_of_batches_and_newcomers_without_a_deadline_are_never_refused() -> None:
    bench = learned()
    bench.send(with_first_token_in(0.0001, length=1000, background=True), newcomer(1000, id="patient"))
    assert not refusals(bench)
