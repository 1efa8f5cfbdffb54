"""What every plan keeps, whatever the requests, sizes, credits and ends: checked on random lives without a clock."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.scheduler.blocks import blocks_for
from triolet.actors.scheduler.queues import Queues
from triolet.protocol.messages import Admit, Cancel, Credit, WorkerLost
from triolet.protocol.steps import Step

from .scheduling import Bench, admit, choices_of, done, ready


class Life(NamedTuple):
    num_blocks: int
    max_step_tokens: int
    max_running: int
    max_steps_in_flight: int
    outbox_tokens: int
    requests: list[Admit]
    weight: float  # of the tenant t
    trouble: list[int]  # one number a step: whom to cancel, whom to pay, when to die


CONTEXT = 192  # three blocks
TEXTS = [tuple(range(first, first + 150)) for first in (1, 1000)]


@st.composite
def lives(draw: st.DrawFn, tenants: tuple[str, ...] = ("", "t")) -> Life:
    max_step_tokens = draw(st.sampled_from((1, 7, 64, 300)))
    # Steps of one token recompute a preempted sequence slowly: 63,000 steps have been seen with long ones.
    longest = 80 if max_step_tokens == 1 else CONTEXT

    def request(number: int) -> Admit:
        prompt = draw(st.sampled_from(TEXTS))[: draw(st.integers(1, min(150, longest)))]
        return admit(
            f"r{number}",
            prompt,
            max_tokens=draw(st.integers(0, longest - len(prompt))),
            n=draw(st.sampled_from((1, 1, 2, 4))),
            priority=draw(st.sampled_from((0, 0, 1))),
            tenant=draw(st.sampled_from(tenants)),
            determinism=draw(st.sampled_from(("default", "strict"))),
            arrival_time=float(draw(st.integers(0, 3))),
        )

    return Life(
        num_blocks=draw(st.integers(3, 8)),
        max_step_tokens=max_step_tokens,
        max_running=draw(st.integers(1, 5)),
        max_steps_in_flight=draw(st.integers(1, 3)),
        outbox_tokens=draw(st.sampled_from((1, 5, 1000))),
        requests=[request(number) for number in range(draw(st.integers(1, 6)))],
        weight=draw(st.sampled_from((1.0, 0.25, 3.0))),
        # With a third death in a row a request may be given up: that is tested elsewhere.
        trouble=draw(st.lists(st.integers(0, 99), max_size=20).filter(lambda numbers: numbers.count(10) < 3)),
    )


def live(life: Life, check: Callable[[Bench, Step], None]) -> tuple[list[Step], dict[tuple[str, int], int]]:
    """Run to the end; the steps, and how many tokens each choice got."""
    worker = ready(
        num_blocks=life.num_blocks,
        max_step_tokens=life.max_step_tokens,
        max_running=life.max_running,
        context_length=CONTEXT,
    )
    bench = Bench(
        worker=worker,
        max_steps_in_flight=life.max_steps_in_flight,
        outbox_tokens=life.outbox_tokens,
        weights={"t": life.weight},
    )
    bench.send(*life.requests)
    steps: list[Step] = []
    got: dict[tuple[str, int], int] = {}
    flying: list[Step] = []
    trouble = list(life.trouble)
    while bench.state.table.requests:
        while step := bench.state.plan():
            check(bench, step)
            steps.append(step)
            flying.append(step)
        assert flying, f"nobody moves: {[bench.whereabouts(id) for id in bench.state.table.requests]}"
        match trouble.pop() if trouble else 50:
            case number if number < 10:
                bench.send(Cancel(id=f"r{number}"))
            case 10:
                bench.send(WorkerLost(reason="test"), worker)
                flying.clear()
            case _:
                pass
        if flying:  # else the worker has just been replaced
            bench.send(done(flying.pop(0)))
        for message in bench.texts():
            for choice in choices_of(message):
                key = choice.id, choice.index
                got[key] = got.get(key, 0) + len(choice.tokens)
                bench.send(Credit(id=choice.id, tokens=len(choice.tokens)))
    return steps, got


def check_plan(bench: Bench, step: Step) -> None:
    state = bench.state
    state.table.pool.audit(state.table.tables())
    limits = state.waits.limits
    assert limits is not None
    assert 0 < sum(chunk.count for chunk in step.chunks) <= limits.max_step_tokens
    assert len(step.chunks) <= limits.max_running
    assert len({chunk.sequence for chunk in step.chunks}) == len(step.chunks)
    for sequence in state.table.sequences.values():
        assert len(sequence.blocks) == blocks_for(sequence.computed)
        assert sequence.live.credit >= 0
    for chunk in step.chunks:
        planned = state.table.sequences[chunk.sequence]
        assert planned.place == "running", "a sequence with a chunk was a victim"
        assert planned.computed == chunk.start + chunk.count
    check_copies(bench, step)


def check_copies(bench: Bench, step: Step) -> None:
    """From a choice that computed the prompt before this step, into a block that nobody else has."""
    sources, targets = {copy.source for copy in step.copies}, {copy.target for copy in step.copies}
    assert len(targets) == len(step.copies)
    assert not sources & targets
    starts = {chunk.sequence: chunk.start for chunk in step.chunks}
    sequences = bench.state.table.sequences.values()
    for copy in step.copies:
        (twin,) = (sequence for sequence in sequences if copy.target in sequence.blocks)
        place = twin.blocks.index(copy.target)
        before = [
            starts.get(other.id, other.computed)
            for other in sequences
            if other.prompt is twin.prompt and other.blocks[place : place + 1] == [copy.source]
        ]
        assert max(before) >= twin.prompt_tokens
        assert place * 64 < starts.get(twin.id, twin.computed) <= min(twin.prompt_tokens, place * 64 + 64)
        assert twin.reads_prefix_cache


@settings(max_examples=200, deadline=None)
@given(lives())
def test_blocks_are_conserved_budgets_kept_and_everybody_ends(life: Life) -> None:
    cancels = {f"r{number}" for number in life.trouble if number < 10}
    _, got = live(life, check_plan)
    for message in life.requests:
        if message.request.id not in cancels:
            for index in range(message.request.n):
                assert got.get((message.request.id, index), 0) == message.max_tokens[0]


def test_copies_are_planned_in_these_lives() -> None:
    """Else the test above says nothing of them."""
    copies = 0

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(lives())
    def count(life: Life) -> None:
        nonlocal copies
        copies += sum(len(step.copies) for step in live(life, lambda bench, step: None)[0])

    count()
    assert copies > 10


@settings(max_examples=20, deadline=None)
@given(lives())
def test_the_same_events_give_the_same_plans(life: Life) -> None:
    first, _ = live(life, lambda bench, step: None)
    second, _ = live(life, lambda bench, step: None)
    assert first == second


@settings(max_examples=60, deadline=None)
@given(lives(tenants=("",)))
def test_with_one_tenant_ranks_are_in_the_order_of_the_queues(life: Life) -> None:
    """So they need not be computed then: with them and without, every plan is the same."""
    without = live(life, lambda bench, step: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queues, "several_tenants", True)
        assert live(life, lambda bench, step: None) == without


@settings(max_examples=60, deadline=None)
@given(lives(tenants=("a", "b", "c")))
def test_no_more_rows_are_taken_than_sequences_and_preemptions(life: Life) -> None:
    """And everybody ends: `live` would not return."""
    benches: list[Bench] = []
    live(life, lambda bench, step: benches.append(bench))
    for bench in benches[-1:]:
        totals = bench.state.totals
        choices = sum(request.request.n for request in life.requests)
        assert totals.displaced <= choices + totals.preemptions


@settings(max_examples=50, deadline=None)
@given(lives())
def test_tables_share_blocks_only_for_equal_prefixes_of_one_namespace(life: Life) -> None:
    def check(bench: Bench, step: Step) -> None:
        holders: dict[int, tuple[str, str, int, tuple[int, ...]]] = {}
        for sequence in bench.state.table.sequences.values():
            for place, block in enumerate(sequence.blocks):
                if bench.state.table.pool.references(block) > 1:
                    prefix = sequence.tokens_between(0, (place + 1) * 64)
                    assert len(prefix) == (place + 1) * 64
                    generate = sequence.live.generate
                    what = (generate.tenant, generate.determinism, place, prefix)
                    assert holders.setdefault(block, what) == what

    live(life, check)
