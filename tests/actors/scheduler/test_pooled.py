"""Texts that are pooled: each whole in one step, kept by no cache, ended by its vector, computed again after a loss."""

from msgspec.structs import replace

from triolet.protocol.messages import ChoiceTokens, DropRequest, StepTokens, WorkerLost
from triolet.protocol.steps import Row, Step, StepDone

from .scheduling import Bench, admit, choices_of, computed, ready, text


def vectors(bench: Bench, step: Step) -> list[ChoiceTokens]:
    """Answers a step with a vector for each text; what the detokenizer gets of it."""
    rows = tuple(Row(sequence=chunk.sequence, vector=b"%d" % chunk.sequence) for chunk in step.chunks)
    bench.send(StepDone(step=step.step, rows=rows, duration=0.01, model_duration=0.01))
    return [choice for message in bench.state.take_texts() for choice in choices_of(message)]


def test_texts_share_a_step_and_none_is_cut() -> None:
    """A decoder's prompt would get the 40 tokens that the first text leaves. Nothing overtakes the second."""
    bench = Bench(worker=ready(max_step_tokens=100))
    bench.send(admit("a", text(60), text(50, 500), text(30, 900), max_tokens=1, pooled=True))
    first = bench.plan()
    assert computed(first) == {1: 60}
    assert [choice.vector for choice in vectors(bench, first)] == [b"1"]
    second = bench.plan()
    assert computed(second) == {2: 50, 3: 30}
    ended = vectors(bench, second)
    assert [(choice.index, choice.vector, choice.reason) for choice in ended] == [(1, b"2", "stop"), (2, b"3", "stop")]
    assert not bench.state.table.requests
    assert bench.state.statistics().blocks.owned == 0


def test_a_text_as_long_as_the_context_is_computed_to_its_last_token() -> None:
    bench = Bench(worker=ready(max_step_tokens=128, context_length=128))
    bench.send(admit("a", text(128), max_tokens=1, pooled=True))
    assert computed(bench.plan()) == {1: 128}


def test_the_same_text_is_computed_again_and_costs_its_reader_no_credit() -> None:
    """A vector depends on every token, so no prefix is shared; and more texts come than an outbox has credit for."""
    bench = Bench(worker=ready(max_step_tokens=256), outbox_tokens=2)
    bench.send(admit("a", *[text(64)] * 4, max_tokens=1, pooled=True))
    assert computed(bench.plan()) == {1: 64, 2: 64, 3: 64, 4: 64}


def test_a_lost_worker_costs_nothing_but_time() -> None:
    bench = Bench()
    bench.send(admit("a", text(10), text(20, 100), max_tokens=1, pooled=True))
    lost = bench.plan()
    bench.send(WorkerLost(reason="killed"), ready())
    again = bench.plan()
    assert computed(again) == computed(lost)
    assert [record.tokens for record in again.new] == [text(10), text(20, 100)]
    assert vectors(bench, lost) == []  # its answer comes late
    assert len(vectors(bench, again)) == 2


def test_a_pair_says_where_its_second_text_begins_and_a_deadline_ends_it() -> None:
    bench = Bench(worker=ready(max_step_tokens=16))
    pair = admit("a", text(10), text(12, 50), max_tokens=1, pooled=True, deadline=5.0)
    bench.send(replace(pair, seconds=(4, 6)))
    (record,) = bench.plan().new
    assert (record.pooled, record.second) == (True, 4)
    bench.state.take_texts()
    bench.state.expire(6.0)
    assert bench.state.take_texts() == [DropRequest(id="a", reason="deadline")]
    assert not isinstance(bench.state.plan(), StepTokens)
