"""Choices of one prompt: one computes its last block, the others copy it and compute only what their logits need."""

import pytest

from triolet.protocol.messages import OpenChoice, Stop, WorkerLost
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import BlockCopy, Step

from .scheduling import Bench, admit, computed, ready, text


def starts(step: Step) -> dict[int, int]:
    return {chunk.sequence: chunk.start for chunk in step.chunks}


@pytest.mark.parametrize("prompt", [40, 100, 128])
def test_one_choice_computes_the_prompt_and_the_others_its_last_token(prompt: int) -> None:
    """Without copies eight choices of 100 tokens computed 100 + 7 x 36 of them."""
    bench = Bench()
    bench.send(admit("a", text(prompt), n=8))
    assert computed(bench.step()) == {1: prompt}
    step = bench.step()
    assert starts(step) == {1: prompt} | dict.fromkeys(range(2, 9), prompt - 1)
    assert set(computed(step).values()) == {1}
    tables = [sequence.blocks for sequence in bench.state.table.sequences.values()]
    place = (prompt - 1) // 64
    assert step.copies == tuple(BlockCopy(tables[0][place], table[place]) for table in tables[1:])
    assert all(table[:place] == tables[0][:place] for table in tables)
    assert [chunk.blocks for chunk in step.chunks[1:]] == [tuple(table) for table in tables[1:]]
    assert bench.state.totals.prefill_tokens == prompt + 7
    assert [text.cached_tokens for text in bench.texts() if isinstance(text, OpenChoice)] == [0] + [prompt - 1] * 7


def test_few_tokens_are_computed_again() -> None:
    bench = Bench()
    bench.send(admit("a", text(64 + 16), n=2), admit("b", text(15, 1000), n=2))
    assert computed(bench.step()) == {1: 80, 3: 15, 4: 15}
    step = bench.step()
    assert computed(step) == {1: 1, 2: 16, 3: 1, 4: 1}
    assert not step.copies


def test_a_prompt_that_is_scored_is_computed_by_every_choice() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), n=2, sampling=Sampling(prompt_logprobs=0)))
    assert computed(bench.step()) == {1: 100, 2: 100}


def test_a_prompt_is_copied_in_a_later_step_than_it_is_computed() -> None:
    bench = Bench(worker=ready(max_step_tokens=30), max_steps_in_flight=4)
    bench.send(admit("a", text(50), n=2))
    first, second, third = bench.plan(), bench.plan(), bench.plan()
    assert [computed(step) for step in (first, second, third)] == [{1: 30}, {1: 20}, {1: 1, 2: 1}]
    assert [len(step.copies) for step in (first, second, third)] == [0, 0, 1]


def test_where_no_choice_is_left_the_prompt_is_computed_again() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), n=2))
    bench.step(token=0)  # the first ends with its first token
    step = bench.step()
    assert (starts(step), step.copies) == ({2: 64}, ())


def test_without_the_blocks_before_it_a_block_is_not_copied() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), n=2))
    bench.step()
    bench.state.table.pool.disown(bench.state.table.sequences[1].blocks)  # as if another's were cached, and evicted
    step = bench.step()
    assert (starts(step), step.copies) == ({1: 100, 2: 0}, ())


def test_a_choice_that_ended_is_no_source_but_one_that_copied_is() -> None:
    bench = Bench(worker=ready(max_running=2))
    bench.send(admit("a", text(100), n=3))
    bench.step()
    bench.step()
    bench.send(Stop(id="a", index=0, tokens_kept=1))
    (copy,) = bench.step().copies
    second, third = bench.state.table.sequences.values()
    assert copy == BlockCopy(second.blocks[1], third.blocks[1])


def test_a_new_worker_has_nothing_to_copy_until_it_has_computed_the_prompt() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), n=3))
    bench.step()
    bench.plan()
    bench.send(WorkerLost(reason="killed"), ready())
    step = bench.step()
    assert (computed(step), step.copies) == ({1: 101}, ())
    step = bench.step()
    assert (starts(step), len(step.copies)) == ({1: 101, 2: 99, 3: 99}, 2)


def test_a_preempted_choice_copies_the_whole_prompt_and_computes_its_answer() -> None:
    bench = Bench(worker=ready(num_blocks=8))
    bench.send(admit("a", text(100), n=2))
    for _ in range(5):
        bench.step(token=7)
    table = bench.state.table
    second = table.sequences[2]
    plan_victim(bench, second.id)
    step = bench.step(token=7)
    assert step.dropped == (2,)
    assert [copy.source for copy in step.copies] == [table.sequences[1].blocks[1]]
    (chunk,) = (chunk for chunk in step.chunks if chunk.sequence == 2)
    assert (chunk.start, chunk.count, chunk.sample) == (100, 4, True)


def plan_victim(bench: Bench, id: int) -> None:
    """As a plan that is short of blocks leaves it."""
    table = bench.state.table
    sequence = table.sequences[id]
    table.queues.move(sequence, "waiting")
    sequence.forget_kv(table.pool)
    table.dropped.append(id)


def test_a_copy_is_forgotten_with_the_choice_that_is_preempted_in_the_same_step() -> None:
    """All join ahead of `low`, then the most urgent one needs ten blocks: those of `low` and of the last choice too."""
    bench = Bench(worker=ready(num_blocks=14, max_step_tokens=1024))
    bench.send(admit("low", text(3, 5000), priority=5), admit("a", text(40), n=5))
    bench.step()
    bench.send(admit("urgent", text(600, 1000), priority=-1))
    step = bench.plan()
    assert bench.state.totals.preemptions == 2
    assert starts(step) == {7: 0, 2: 40, 3: 39, 4: 39, 5: 39}
    table = bench.state.table
    source, *targets = (table.sequences[id].blocks[0] for id in (2, 3, 4, 5))
    assert step.copies == tuple(BlockCopy(source, target) for target in targets)
    table.pool.audit(table.tables())
