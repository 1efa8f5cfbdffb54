"""plan_step: who gets a chunk, who waits and why, who gives way."""

from typing import Any

import pytest

from triolet.actors.scheduler.fair_share import choose_victim
from triolet.actors.scheduler.sequence import Place
from triolet.actors.scheduler.state import SchedulerState
from triolet.protocol.adapters import Adapter
from triolet.protocol.messages import Cancel, Credit, OpenChoice
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import AdapterReady, Step

from .scheduling import Bench, admit, done, ready, text


def counts(bench: Bench, token: int = 5) -> dict[int, int]:
    """Plan and answer a step; tokens per sequence."""
    return {chunk.sequence: chunk.count for chunk in bench.step(token).chunks}


def place(state: SchedulerState, sequence: int) -> Place:
    return state.table.sequences[sequence].place


def test_a_long_prompt_is_cut_to_the_budget_and_sampled_at_its_end() -> None:
    bench = Bench(worker=ready(max_step_tokens=100))
    bench.send(admit("a", text(250)))
    chunks = [bench.step().chunks[0] for _ in range(4)]
    assert [(chunk.start, chunk.count, chunk.sample) for chunk in chunks] == [
        (0, 100, False),
        (100, 100, False),
        (200, 50, True),
        (250, 1, True),
    ]


def test_blocks_come_with_the_chunk_that_needs_them() -> None:
    bench = Bench(worker=ready(max_step_tokens=100))
    bench.send(admit("a", text(128)))
    first, second, third = (bench.step().chunks[0] for _ in range(3))
    assert [len(chunk.blocks) for chunk in (first, second, third)] == [2, 0, 1]


def test_decoding_sequences_keep_their_token_beside_a_long_prompt() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(3)), admit("b", text(3, 50)))
    bench.step()
    bench.send(admit("c", text(500, 100), priority=-1))
    assert counts(bench) == {3: 62, 1: 1, 2: 1}


def test_a_short_prompt_joins_in_what_a_longer_one_leaves_of_the_budget() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(60)), admit("b", text(30, 500)))
    assert counts(bench) == {1: 60, 2: 4}
    assert counts(bench) == {1: 1, 2: 26}


def test_the_first_in_order_has_lower_priority_number_then_earlier_arrival() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(
        admit("late", text(3, 10), arrival_time=2.0),
        admit("early", text(3, 20), arrival_time=1.0),
        admit("urgent", text(3, 30), arrival_time=3.0, priority=-1),
    )
    order: list[int] = []
    for _ in range(3):
        (chunk,) = bench.step(token=0).chunks  # the end-of-sequence token
        order.append(chunk.sequence)
    assert order == [3, 2, 1]


def test_nobody_overtakes_a_large_sequence_that_waits_for_blocks() -> None:
    bench = Bench(worker=ready(num_blocks=8))
    bench.send(admit("a", text(200), max_tokens=2))
    bench.step()
    bench.send(admit("large", text(400, 1000), max_tokens=2), admit("small", text(3, 5000), max_tokens=2))
    bench.step()
    assert bench.whereabouts("large") == {0: "blocks"}
    assert bench.whereabouts("small") == {0: "order"}
    assert set(counts(bench)) == {2}  # a has ended


def test_one_block_per_running_sequence_is_left_alone_when_another_joins() -> None:
    bench = Bench(worker=ready(num_blocks=4))
    bench.send(admit("a", text(64), max_tokens=50), admit("b", text(180, 500), max_tokens=3))
    assert set(counts(bench)) == {1}
    assert bench.whereabouts("b") == {0: "blocks"}


def test_the_latest_gives_way_when_blocks_run_out_and_comes_back_with_its_prefix() -> None:
    bench = Bench(worker=ready(num_blocks=4))
    bench.send(admit("a", text(100), max_tokens=60), admit("b", text(60, 500), max_tokens=100))
    step = bench.step()
    while bench.state.totals.preemptions == 0:
        step = bench.step()
    assert place(bench.state, 2) == "waiting"
    assert step.dropped == (2,)
    while not step.new:
        step = bench.step()
    (record,) = step.new
    assert record.sequence == 2
    assert record.tokens[:60] == text(60, 500)
    assert record.prompt_tokens == 60
    (chunk,) = (chunk for chunk in step.chunks if chunk.sequence == 2)
    assert chunk.start == 64 * (len(record.tokens) // 64)  # what it computed before is still cached


def test_a_sequence_with_a_chunk_in_this_step_is_never_a_victim() -> None:
    bench = Bench(worker=ready(num_blocks=2, max_step_tokens=64))
    bench.send(admit("a", text(62), max_tokens=20), admit("b", text(1, 900), max_tokens=20))
    bench.step()
    for _ in range(4):
        planned = {chunk.sequence for chunk in bench.step().chunks}
        assert all(place(bench.state, sequence) == "running" for sequence in planned)
        assert 1 in planned


def test_choices_of_one_prompt_wait_for_the_first_and_share_its_blocks() -> None:
    bench = Bench(worker=ready(max_step_tokens=128))
    bench.send(admit("a", text(200), n=3))
    assert counts(bench) == {1: 128}
    assert bench.whereabouts("a") == {0: "running", 1: "prefix", 2: "prefix"}
    assert counts(bench) == {1: 72}
    assert counts(bench) == {1: 1, 2: 8, 3: 8}
    tables = [sequence.blocks[:3] for sequence in bench.state.table.sequences.values()]
    assert tables[0] == tables[1] == tables[2]


def test_nobody_waits_for_a_less_urgent_sequence_to_compute_a_shared_prefix() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(200), priority=5))
    bench.step()
    bench.send(admit("b", text(200)))
    assert 2 in counts(bench)


def test_a_prefix_is_not_shared_with_another_tenant_salt_adapter_or_determinism() -> None:
    others: tuple[dict[str, Any], ...] = (
        {"tenant": "t"},
        {"cache_salt": "s"},
        {"adapter": Adapter("l", "/l")},
        {"determinism": "strict"},
    )
    for other in others:
        bench = Bench()
        bench.send(admit("a", text(200)))
        bench.step()
        bench.send(admit("b", text(200), **other), admit("c", text(200)))
        bench.state.take_preparations()
        bench.send(AdapterReady(adapter=1))
        assert counts(bench) == {1: 1, 2: 200, 3: 8}


def test_the_last_token_of_a_cached_prompt_is_computed_anyway() -> None:
    bench = Bench()
    bench.send(admit("a", text(128)))
    bench.step()
    bench.send(admit("b", text(128)))
    step = bench.step()
    (chunk,) = (chunk for chunk in step.chunks if chunk.sequence == 2)
    assert (chunk.start, chunk.count, chunk.sample) == (64, 64, True)


def test_prompt_logprobs_need_every_row_so_the_cache_is_not_read() -> None:
    bench = Bench()
    bench.send(admit("a", text(200)))
    bench.step()
    bench.send(admit("b", text(200), sampling=Sampling(prompt_logprobs=0)))
    step = bench.step()
    (chunk,) = (chunk for chunk in step.chunks if chunk.sequence == 2)
    assert (chunk.start, chunk.count, chunk.prompt_logprobs) == (0, 200, True)
    assert not any(chunk.prompt_logprobs for chunk in bench.step().chunks)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("max_tokens", [5, 10])  # 5: the block is full with the last computed token
def test_generated_text_is_cached_for_the_next_turn_of_a_conversation(in_flight: int, max_tokens: int) -> None:
    bench = Bench(max_steps_in_flight=in_flight)
    bench.send(admit("a", text(60), max_tokens=max_tokens))
    flying: list[Step] = []
    while bench.state.table.requests:
        while step := bench.state.plan():
            flying.append(step)
        bench.send(done(flying.pop(0), token=7))
    bench.send(*(done(step) for step in flying))
    bench.send(admit("b", (*text(60), 7, 7, 7, 7, 7, 7)))
    assert counts(bench) == {2: 2}
    assert bench.state.totals.prefix_hit_tokens == 64
    assert [message.cached_tokens for message in bench.texts() if isinstance(message, OpenChoice)] == [0, 64]


@pytest.mark.parametrize(("determinism", "cached"), [("default", 192), ("strict", 128)])
def test_a_strict_answer_is_not_cached_for_the_next_turn_but_its_prompt_is(determinism: str, cached: int) -> None:
    bench = Bench()
    bench.send(admit("a", text(130), max_tokens=100, determinism=determinism))
    while bench.state.table.requests:
        bench.step(token=7)
    bench.send(admit("b", (*text(130), *[7] * 100), determinism=determinism))
    assert counts(bench) == {2: 230 - cached}


@pytest.mark.parametrize(("determinism", "start"), [("default", 192), ("strict", 128)])
def test_a_strict_sequence_comes_back_with_its_prompt_cached_and_computes_its_answer(
    determinism: str, start: int
) -> None:
    """Even if the answer's block has come into the cache by another's prompt: it would have other bits there."""
    bench = Bench(worker=ready(max_running=1, max_step_tokens=512))
    bench.send(admit("a", text(130), max_tokens=100, determinism=determinism))
    while len(bench.state.table.sequences[1].generated) < 80:
        bench.step(token=7)
    bench.send(admit("turn", (*text(130), *[7] * 80), max_tokens=1, priority=-1, determinism=determinism))
    bench.step()
    assert bench.state.totals.preemptions == 1
    (chunk,) = bench.step().chunks
    assert (chunk.sequence, chunk.start, chunk.count, chunk.sample) == (1, start, 210 - start, True)


def test_nobody_takes_the_blocks_that_a_preemption_left_over_before_the_preempted_one() -> None:
    bench = Bench(worker=ready(num_blocks=6, max_step_tokens=512), max_steps_in_flight=2)
    bench.send(admit("a", text(128)), admit("large", text(128, 1000)), admit("small", text(3, 5000)))
    step = bench.plan()
    while True:  # until both need a block in the same step
        following = bench.plan()
        if bench.state.totals.preemptions:
            break
        bench.send(done(step))
        step = following
    assert bench.whereabouts("large") == {0: "unread"}
    assert bench.whereabouts("small") == {0: "blocks"}


def test_blocks_that_parked_sequences_share_are_not_counted_twice() -> None:
    bench = Bench(worker=ready(num_blocks=11, max_step_tokens=512), outbox_tokens=4)
    bench.send(admit("r", text(256), max_tokens=20), admit("p", text(130, 1000), n=2, max_tokens=20))
    bench.send(Credit(id="r", tokens=100))
    for _ in range(5):
        bench.step()
    assert bench.whereabouts("p") == {0: "parked", 1: "parked"}
    assert bench.state.statistics().blocks.owned == 5 + 4  # each of p's tables names three
    bench.send(admit("w", text(330, 5000), max_tokens=20))
    assert 4 not in counts(bench)
    assert bench.whereabouts("w") == {0: "blocks"}


def test_the_last_in_order_is_the_victim_unless_it_is_spared() -> None:
    bench = Bench()
    bench.send(*(admit(str(number), text(3, 10 * number)) for number in range(3)))
    bench.step()
    queues = bench.state.table.queues
    spared: tuple[set[int], ...] = (set(), {3}, {2, 3}, {1, 2, 3})
    assert [getattr(choose_victim(queues, each), "id", None) for each in spared] == [3, 2, 1, None]


def test_without_credit_a_sequence_is_parked_with_its_blocks_and_its_row_is_free() -> None:
    bench = Bench(worker=ready(max_running=1), outbox_tokens=2)
    bench.send(admit("a", text(100)), admit("b", text(3, 500)))
    *_, step = [bench.step() for _ in range(3)]
    assert bench.whereabouts("a") == {0: "parked"}
    assert len(bench.state.table.sequences[1].blocks) == 2
    assert [chunk.sequence for chunk in step.chunks] == [2]


def test_a_parked_sequence_goes_on_when_its_reader_gives_credit_and_a_row_is_free() -> None:
    bench = Bench(worker=ready(max_running=1), outbox_tokens=2)
    bench.send(admit("a", text(100)), admit("b", text(3, 500)))
    for _ in range(3):
        bench.step()
    bench.send(Credit(id="a", tokens=5))
    assert counts(bench) == {2: 1}  # b still has the only row
    assert counts(bench) == {1: 1}  # and now it is b that has no credit
    assert bench.whereabouts("b") == {0: "parked"}


def test_parked_sequences_are_the_first_victims() -> None:
    bench = Bench(worker=ready(num_blocks=4), outbox_tokens=2)
    bench.send(admit("a", text(100)))
    bench.step()
    bench.step()
    assert bench.state.plan() is None
    bench.send(admit("b", text(190, 500), max_tokens=60))
    assert counts(bench) == {2: 190}
    assert place(bench.state, 1) == "waiting"


def test_a_preempted_sequence_waits_until_its_tokens_on_the_way_are_read() -> None:
    bench = Bench(worker=ready(max_running=1), max_steps_in_flight=2)
    bench.send(admit("a", text(100), priority=1))
    first, second = bench.plan(), bench.plan()
    bench.send(admit("b", text(3, 500)), done(first))
    third = bench.plan()
    assert third.dropped == (1,)
    bench.send(Cancel(id="b"))
    assert bench.state.plan() is None
    assert bench.whereabouts("a") == {0: "unread"}
    bench.send(done(second, token=9))
    step = bench.plan()
    assert step.new[0].tokens == (*text(100), 5, 9)
    assert step.dropped == (2,)


def test_an_urgent_request_takes_the_row_of_a_less_urgent_one() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3), priority=5))
    bench.step()
    bench.send(admit("b", text(3, 50), priority=0))
    assert counts(bench) == {2: 3}
    assert place(bench.state, 1) == "waiting"


def test_an_urgent_prompt_is_computed_before_a_less_urgent_one_that_runs() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(500), priority=5))
    bench.step()
    bench.send(admit("b", text(100, 1000)))
    assert counts(bench) == {2: 64}
    assert counts(bench) == {2: 36, 1: 28}


def test_arrival_alone_never_takes_a_row() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3), arrival_time=5.0))
    bench.step()
    bench.send(admit("b", text(3, 50), arrival_time=1.0))
    assert counts(bench) == {1: 1}
    assert bench.whereabouts("b") == {0: "rows"}


def test_a_step_is_planned_upon_tokens_that_are_not_read_yet() -> None:
    bench = Bench(max_steps_in_flight=3)
    bench.send(admit("a", text(10), max_tokens=3))
    steps = [bench.plan() for _ in range(3)]
    assert [(step.chunks[0].start, step.chunks[0].sample) for step in steps] == [(0, True), (10, True), (11, True)]
    bench.send(done(steps[0]))
    assert bench.state.plan() is None  # max_tokens are on their way


def test_more_rows_than_tokens_in_a_step_are_never_given() -> None:
    bench = Bench(worker=ready(max_step_tokens=2, max_running=8))
    bench.send(*(admit(str(number), text(1, number)) for number in range(1, 5)))
    assert counts(bench) == {1: 1, 2: 1}
    assert counts(bench) == {1: 1, 2: 1}


def test_a_sequence_with_banned_words_of_several_tokens_is_read_before_its_next_token() -> None:
    """The worker must know the last token to know whether the next one would complete a word."""
    bench = Bench(max_steps_in_flight=2)
    words = Sampling(bad_words=((4,), (5, 6)))
    bench.send(
        admit("words", text(3), sampling=words), admit("word", text(3, 90), sampling=Sampling(bad_words=((4,),)))
    )
    first = bench.plan()
    assert len(first.chunks) == 2
    for _ in range(3):  # first behind a prompt, then as in a steady stream of tokens
        second = bench.plan()
        assert [chunk.sequence for chunk in second.chunks] == [2]
        bench.send(done(first), done(second))
        first = bench.plan()
        assert {chunk.sequence for chunk in first.chunks} == {1, 2}
