"""The lines of batches run only in steps that no other request can use, and give way to them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.scheduler.background import LEAST_TOKENS, LONGEST_STEP, Pace, wants_step
from triolet.actors.scheduler.grammars import MOST_MEMORY
from triolet.actors.scheduler.step_plan import StepLimits
from triolet.protocol.adapters import Adapter
from triolet.protocol.messages import Admit, Cancel, Credit, StepTokens
from triolet.protocol.steps import AdapterReady, GrammarReady, PrepareAdapter, PrepareGrammar, Step

from .scheduling import Bench, admit, computed, done, ready, text


def line(id: str, length: int = 3, max_tokens: int = 20, **fields: Any) -> Admit:
    return admit(id, text(length, 100_000 + 1000 * int(id[1:])), max_tokens=max_tokens, background=True, **fields)


def owners(bench: Bench, step: Step) -> set[bool]:
    """Whether the step computes lines of batches (True), other requests (False), or both."""
    found = [bench.state.table.sequences[chunk.sequence] for chunk in step.chunks]
    return {sequence.live.generate.background for sequence in found}


def owners_of_next(bench: Bench) -> set[bool]:
    """The same of the next step, which is then answered."""
    step = bench.plan()
    found = owners(bench, step)
    bench.send(done(step))
    return found


def test_a_line_waits_while_a_stream_runs_and_goes_on_afterwards() -> None:
    bench = Bench()
    bench.send(line("l1"))
    assert owners_of_next(bench) == {True}
    bench.send(admit("stream", text(3), max_tokens=5))
    for _ in range(5):
        assert owners_of_next(bench) == {False}
    assert "stream" not in bench.state.table.requests
    step = bench.plan()
    assert owners(bench, step) == {True}
    assert set(computed(step).values()) == {1}  # its KV was kept, and nothing is computed again


def test_a_line_runs_while_the_only_stream_waits_for_its_reader() -> None:
    bench = Bench(outbox_tokens=2)
    bench.send(admit("stream", text(3), max_tokens=5))
    bench.step()
    bench.step()
    bench.send(line("l1"))
    assert owners_of_next(bench) == {True}
    bench.send(Credit(id="stream", tokens=2))
    assert owners_of_next(bench) == {False}


def test_a_line_gives_its_blocks_to_a_request_and_comes_back() -> None:
    bench = Bench(worker=ready(num_blocks=8))
    bench.send(line("l1", length=200, max_tokens=50), line("l2", length=200, max_tokens=50))
    while (
        any(one.remaining > 1 for one in bench.state.table.background.running)
        or not bench.state.table.sequences[2].blocks
    ):
        bench.step()
    bench.send(admit("stream", text(300), max_tokens=2))
    step = bench.plan()
    assert owners(bench, step) == {False}
    assert bench.state.totals.preemptions
    bench.send(done(step))
    while bench.state.table.requests:
        bench.step()
    assert bench.state.table.pool.counts().owned == 0


def test_a_line_keeps_its_blocks_and_runs_while_a_request_waits_for_its_grammar() -> None:
    bench = Bench(worker=ready(num_blocks=4))
    bench.send(line("l1", length=150, max_tokens=50))
    bench.step()
    bench.send(admit("stream", text(100), max_tokens=2, grammar="x"))
    bench.state.take_preparations()
    assert owners_of_next(bench) == {True}
    blocks = bench.state.table.sequences[1].blocks
    assert len(blocks) == 3
    bench.send(GrammarReady(grammar=1))
    assert owners_of_next(bench) == {False}
    assert not bench.state.table.sequences[1].blocks


def test_texts_of_lines_go_to_the_batches_detokenizer_alone() -> None:
    bench = Bench()
    bench.send(line("l1", max_tokens=2), line("l2", max_tokens=2))
    bench.step()
    bench.send(admit("stream", text(3), max_tokens=1))
    bench.step()
    bench.send(Cancel(id="l2"))
    bench.step()
    own = bench.state.take_batch_texts()
    assert {one.id for message in own if isinstance(message, StepTokens) for one in message.choices()} == {"l1", "l2"}
    others = bench.texts()
    assert {one.id for message in others if isinstance(message, StepTokens) for one in message.choices()} == {"stream"}


def test_lines_are_in_no_count_of_clients() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(line("l1"), line("l2"))
    bench.step()
    figures = bench.state.statistics()
    assert (figures.running, figures.waiting, figures.waiting_by_reason) == (0, 0, {})
    assert (figures.background_running, figures.background_waiting) == (1, 1)
    assert bench.state.standing("l1", 0.0) is None


@pytest.mark.parametrize(("seconds", "tokens"), [(LONGEST_STEP * 2, LEAST_TOKENS), (LONGEST_STEP / 10, 512)])
def test_the_budget_of_background_steps_follows_their_time(seconds: float, tokens: int) -> None:
    limits, pace = StepLimits(max_step_tokens=512, max_running=8, context_length=2048), Pace()
    for _ in range(9):
        pace.note(seconds)
        pace.limits(limits)
    assert pace.limits(limits).max_step_tokens == tokens
    narrow = StepLimits(max_step_tokens=512, max_running=256, context_length=2048)
    assert Pace().limits(narrow).max_step_tokens == 256  # a token for each row


NEEDS: list[dict[str, Any]] = [  # of the worker, beside rows and blocks
    {},
    *({"adapter": Adapter(name, "/")} for name in "ab"),
    *({"grammar": name, "grammar_memory": MOST_MEMORY} for name in "xy"),
    *({"adapter": Adapter(one, "/"), "grammar": other, "grammar_memory": MOST_MEMORY} for one, other in ("ax", "by")),
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 200), st.integers(1, 30), st.integers(0, 6), st.sampled_from(NEEDS)),
        min_size=1,
        max_size=14,
    ),
    st.integers(6, 12),
    st.integers(1, 3),
)
def test_no_step_mixes_and_everything_ends(
    arrivals: list[tuple[bool, int, int, int, dict[str, Any]]], blocks: int, flying: int
) -> None:
    """Requests and lines of any size arrive at any time. `flying` steps may be in flight.

    The worker has room for one grammar and one adapter.
    """
    bench = Bench(worker=ready(num_blocks=blocks, max_running=3), max_steps_in_flight=flying, max_adapters=1)
    flight: list[Step] = []
    waiting = [
        line(f"l{number}", length, most, **needs)
        if background
        else admit(f"r{number}", text(length, 1000 * number), max_tokens=most, **needs)
        for number, (background, length, most, _, needs) in enumerate(arrivals)
    ]
    delays = [delay for *_, delay, _ in arrivals]
    for _ in range(20_000):
        while waiting and delays[0] <= 0:
            bench.send(waiting.pop(0))
            delays.pop(0)
        if delays:
            delays[0] -= 1
        for made in bench.state.take_preparations():
            if isinstance(made, PrepareGrammar):
                bench.send(GrammarReady(grammar=made.grammar))
            elif isinstance(made, PrepareAdapter):
                bench.send(AdapterReady(adapter=made.adapter))
        queues = bench.state.table.queues
        wanted = wants_step(queues)
        step = bench.state.plan()
        if step is not None:
            assert owners(bench, step) == {not wanted}
            flight.append(step)
        elif flight:
            bench.send(done(flight.pop(0)))
        elif not waiting and not bench.state.table.requests:
            break
    else:
        raise AssertionError(f"it does not end: {bench.state.table.requests}")
    assert bench.state.table.pool.counts().owned == 0
