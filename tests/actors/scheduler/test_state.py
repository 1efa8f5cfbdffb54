"""SchedulerState: every request is answered once, whatever happens to its tokens, its reader and its worker."""

from msgspec import structs

from triolet.actors.scheduler.sharing import LONG_STEP, SHORT_STEP
from triolet.protocol.events import TokenLogprob
from triolet.protocol.messages import (
    Cancel,
    ChoiceTokens,
    DropRequest,
    EngineFailed,
    OpenChoice,
    StepTokens,
    Stop,
    WorkerLost,
)
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Row, Step, StepDone, StepFailed

from .scheduling import Bench, admit, choices_of, computed, done, flood, newcomer, ready, text


def said(bench: Bench) -> list[ChoiceTokens]:
    """What the choices said, in order."""
    return [choice for message in bench.texts() for choice in choices_of(message)]


def test_a_choice_is_opened_once_then_its_tokens_come_and_the_last_ones_say_why() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), max_tokens=2))
    bench.step(token=7)
    opened, first = bench.texts()
    assert isinstance(opened, OpenChoice)
    assert (opened.request.id, opened.index, opened.prompt) == ("a", 0, text(3))
    assert first == StepTokens(ids=("a",), rows=((7,),))
    bench.step(token=8)
    assert said(bench) == [ChoiceTokens(id="a", index=0, tokens=(8,), reason="length")]
    assert bench.state.statistics().requests == 0


def test_an_end_of_sequence_token_ends_without_a_stop_reason_and_is_not_sent() -> None:
    bench = Bench()
    bench.send(admit("a", text(3)))
    bench.step(token=7)
    bench.step(token=0)
    assert said(bench)[1:] == [ChoiceTokens(id="a", index=0, tokens=(), reason="stop", stop_token=0)]


def test_a_stop_token_of_the_request_is_named_as_the_stop_reason() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), stops=(0, 9)))
    bench.step(token=9)
    assert said(bench) == [ChoiceTokens(id="a", index=0, tokens=(), reason="stop", stop_reason=9, stop_token=9)]


def test_without_stop_tokens_the_end_of_sequence_token_is_text() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), stops=(), max_tokens=2))
    bench.step(token=0)
    assert said(bench) == [ChoiceTokens(id="a", index=0, tokens=(0,))]


def test_a_stop_token_before_min_tokens_is_text() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), sampling=Sampling(min_tokens=2)))
    for _ in range(3):
        bench.step(token=0)
    assert [(choice.tokens, choice.reason) for choice in said(bench)] == [((0,), None), ((0,), None), ((), "stop")]


def test_the_context_length_ends_a_sequence() -> None:
    bench = Bench(worker=ready(context_length=10))
    bench.send(admit("a", text(8), max_tokens=100))
    bench.step()
    bench.step()
    assert said(bench)[-1].reason == "length"


def test_no_token_is_computed_when_none_is_wanted() -> None:
    bench = Bench()
    bench.send(admit("a", text(100), max_tokens=0))
    assert bench.state.plan() is None
    opened, end = bench.texts()
    assert isinstance(opened, OpenChoice)
    assert end == StepTokens(others=(ChoiceTokens(id="a", index=0, tokens=(), reason="length"),))


def scores(first: int, count: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token_id=token, logprob=-1.0) for token in range(first, first + count))


def scored(step: Step, bench: Bench) -> StepDone:
    """Answer a step as a worker does that reports the prompt tokens behind each row."""
    rows: list[Row] = []
    for chunk, row in zip(step.chunks, done(step).rows, strict=True):
        prompt = bench.state.table.sequences[chunk.sequence].prompt.tokens
        followers = prompt[chunk.start + 1 : chunk.start + chunk.count + 1] if chunk.prompt_logprobs else ()
        answers = tuple(TokenLogprob(token_id=token, logprob=-1.0) for token in followers)
        rows.append(structs.replace(row, prompt_logprobs=answers))
    return StepDone(step=step.step, rows=tuple(rows), duration=0.01, model_duration=0.01)


def test_prompt_logprobs_come_whole_with_the_first_token_even_after_a_lost_worker() -> None:
    bench = Bench(worker=ready(max_step_tokens=40))
    bench.send(admit("a", text(100), sampling=Sampling(prompt_logprobs=0)))
    bench.send(scored(bench.plan(), bench))
    bench.send(scored(bench.plan(), bench))
    bench.send(WorkerLost(reason="test"), ready(max_step_tokens=70))
    bench.send(scored(bench.plan(), bench))
    assert said(bench) == []
    bench.send(scored(bench.plan(), bench))
    (first,) = said(bench)
    assert first.tokens == (5,)
    assert first.prompt_logprobs == scores(2, 99)


def test_prompt_logprobs_are_had_without_a_token() -> None:
    bench = Bench()
    bench.send(admit("a", text(5), max_tokens=0, sampling=Sampling(prompt_logprobs=0)))
    bench.send(scored(bench.plan(), bench))
    assert said(bench) == [ChoiceTokens(id="a", index=0, tokens=(), prompt_logprobs=scores(2, 4), reason="length")]


def test_a_token_sampled_behind_the_end_is_discarded() -> None:
    bench = Bench(max_steps_in_flight=2)
    bench.send(admit("a", text(3)))
    first, second = bench.plan(), bench.plan()
    bench.send(done(first, token=0), done(second, token=7))
    assert [choice.tokens for choice in said(bench)] == [()]
    assert bench.state.totals.wasted_tokens == 1
    assert bench.state.totals.generated_tokens == 1


def test_a_newcomer_waits_for_one_long_step_at_most() -> None:
    bench = Bench(max_steps_in_flight=2)
    bench.send(*flood(2), admit("long", text(2000), tenant="a"))
    bench.send(structs.replace(done(bench.plan()), duration=2 * LONG_STEP))
    running = bench.plan()
    assert bench.state.plan() is None
    bench.send(newcomer(), structs.replace(done(running), duration=SHORT_STEP / 2))
    assert 4 in computed(bench.plan())
    assert bench.state.plan() is not None  # short steps follow each other without a gap


def test_a_stop_string_ends_its_choice_alone_and_silently() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), n=2))
    bench.step()
    bench.step()
    bench.texts()
    bench.send(Stop(id="a", index=0, tokens_kept=1))
    assert bench.texts() == []
    step = bench.step()
    assert step.dropped == (1,)
    assert [chunk.sequence for chunk in step.chunks] == [2]
    bench.send(Stop(id="a", index=1, tokens_kept=1), Stop(id="a", index=1, tokens_kept=1))
    assert bench.state.statistics().requests == 0


def test_tokens_that_never_reach_the_reader_cost_no_credit() -> None:
    bench = Bench(outbox_tokens=4)
    bench.send(admit("a", text(3), n=2, stops=(0,)))
    bench.step(token=5)  # both choices
    bench.step(s1=0)  # the first one's end costs nothing, the second takes the third credit
    assert bench.state.table.requests["a"].credit == 1
    bench.send(Stop(id="a", index=1, tokens_kept=1))
    assert not bench.state.table.requests


def test_a_cancelled_request_frees_its_blocks_at_once_and_late_rows_are_ignored() -> None:
    bench = Bench(max_steps_in_flight=2)
    bench.send(admit("a", text(100)))
    steps = [bench.plan(), bench.plan()]
    bench.texts()
    bench.send(Cancel(id="a"))
    assert bench.state.statistics().blocks.owned == 0
    assert bench.texts() == [DropRequest(id="a", reason="cancelled")]
    bench.send(done(steps[0]), done(steps[1]), Cancel(id="a"))
    assert bench.texts() == []
    bench.send(admit("b", text(3)))
    assert bench.plan().dropped == (1,)


def test_a_row_without_numbers_fails_its_request_alone_and_its_blocks_are_not_reused() -> None:
    bench = Bench()
    bench.send(admit("a", text(100)), admit("b", text(3, 500)))
    step = bench.plan()
    bench.texts()
    bad = Row(sequence=1, error="nonfinite_logits")
    bench.send(structs.replace(done(step), rows=(bad, done(step).rows[1])))
    first, second = sorted(said(bench), key=lambda choice: choice.id)
    assert (first.id, first.reason, first.error) == ("a", "error", "nonfinite_logits")
    assert (second.id, second.tokens) == ("b", (5,))
    assert bench.state.statistics().blocks.cached == 0


def test_a_request_whose_step_fails_twice_alone_fails_and_the_others_go_on_with_the_next_worker() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3)), admit("b", text(3, 50)))
    bench.texts()
    for _ in range(2):
        step = bench.plan()
        assert [chunk.sequence for chunk in step.chunks] == [1]
        assert not any(choice.reason for choice in said(bench))
        bench.send(StepFailed(step=step.step, message="division by zero"))
        assert bench.state.plan() is None
        bench.send(WorkerLost(reason="exit"), ready())
    (failed,) = said(bench)
    assert (failed.id, failed.error) == ("a", "engine_error")
    assert "division by zero" in failed.message
    assert [chunk.sequence for chunk in bench.step().chunks] == [2]


def test_a_stream_goes_on_with_a_new_worker_where_it_was() -> None:
    bench = Bench(max_steps_in_flight=2)
    bench.send(admit("a", text(100)))
    bench.step(token=7)
    lost = [bench.plan(), bench.plan()]
    bench.send(WorkerLost(reason="killed"))
    assert bench.whereabouts("a") == {0: "worker"}
    bench.send(done(lost[0], token=8), ready())
    step = bench.plan()
    assert step.dropped == ()
    assert step.new[0].tokens == (*text(100), 7)
    assert (step.chunks[0].start, step.chunks[0].count) == (0, 101)
    bench.texts()
    bench.send(done(step, token=8))
    assert [choice.tokens for choice in said(bench)] == [(8,)]


def test_of_a_lost_workers_cache_nothing_is_found_again() -> None:
    bench = Bench(worker=ready(num_blocks=4))
    for first in (1, 1000):  # the second evicts blocks of the first
        bench.send(admit(f"a{first}", text(200, first), max_tokens=1))
        bench.step()
    evictions = bench.state.statistics().totals.evictions
    assert (bench.state.statistics().blocks.cached, evictions) == (3, 3)
    bench.send(WorkerLost(reason="killed"), ready(num_blocks=8), admit("b", text(200, 1000)))
    assert bench.plan().chunks[0].count == 200
    counts = bench.state.statistics().blocks
    assert (counts.cached, counts.owned, counts.total) == (0, 4, 8)
    assert bench.state.statistics().totals.evictions == evictions


def test_a_request_that_kills_every_worker_fails_before_the_restarts_are_used_up() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("deadly", text(3)), admit("other", text(3, 50)))
    for _ in range(3):
        bench.plan()
        bench.send(WorkerLost(reason="segmentation fault"), ready())
    assert [(choice.id, choice.error) for choice in said(bench)] == [("deadly", "engine_error")]
    assert [chunk.sequence for chunk in bench.step().chunks] == [2]


def test_a_stream_that_gets_tokens_between_losses_goes_on() -> None:
    bench = Bench()
    bench.send(admit("a", text(3)))
    for _ in range(5):
        bench.step()
        bench.plan()
        bench.send(WorkerLost(reason="killed"), ready())
    assert all(choice.reason is None for choice in said(bench))
    assert bench.whereabouts("a") == {0: "step"}  # no plan has been made since


def test_when_no_worker_will_come_everybody_is_told_also_those_who_come_later() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3)), admit("b", text(3, 50), n=2))
    bench.step()
    bench.texts()
    bench.send(WorkerLost(reason="killed"), EngineFailed(reason="it died 4 times"), admit("c", text(3)))
    assert [(choice.id, choice.error) for choice in said(bench)] == [
        (id, "engine_unavailable") for id in ("a", "b", "c")
    ]
    assert bench.state.statistics().requests == 0


def test_a_request_that_can_never_fit_fails_instead_of_waiting() -> None:
    bench = Bench(worker=ready(num_blocks=2))
    bench.send(admit("a", text(100), max_tokens=29), admit("b", text(100), max_tokens=30))
    (failed,) = said(bench)
    assert (failed.id, failed.error) == ("b", "context_length_exceeded")
    assert "3 KV blocks" in failed.message


def test_a_new_worker_with_less_memory_fails_what_does_not_fit_any_more() -> None:
    bench = Bench(worker=ready(num_blocks=8))
    bench.send(admit("a", text(300), max_tokens=10), admit("b", text(10, 900), max_tokens=10))
    bench.step()
    bench.texts()
    bench.send(WorkerLost(reason="killed"), ready(num_blocks=2))
    assert [(choice.id, choice.error) for choice in said(bench)] == [("a", "context_length_exceeded")]
    assert [chunk.sequence for chunk in bench.step().chunks] == [2]


def test_a_new_worker_with_a_shorter_context_ends_a_choice_without_opening_it_again() -> None:
    bench = Bench()
    bench.send(admit("a", text(100)))
    bench.step()
    bench.step()
    bench.texts()
    bench.send(WorkerLost(reason="killed"), ready(context_length=102))
    (message,) = bench.texts()
    assert isinstance(message, StepTokens)
    assert [(choice.id, choice.reason) for choice in message.others] == [("a", "length")]


def test_statistics_tell_where_everybody_is() -> None:
    bench = Bench(worker=ready(max_running=1), max_steps_in_flight=2)
    bench.send(admit("a", text(100), max_tokens=1), admit("b", text(3, 500)), admit("c", text(3, 600)))
    bench.plan()
    it = bench.state.statistics()
    assert (it.requests, it.running, it.parked, it.waiting, it.steps_in_flight) == (3, 1, 0, 2, 1)
    assert it.waiting_by_reason == {"rows": 1, "order": 1}
    assert (it.blocks.owned, it.blocks.free, it.blocks.total) == (2, 62, 64)
    assert it.totals.prompt_tokens == 100
