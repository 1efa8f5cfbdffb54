"""A beam search in the scheduler: what its beams compute, and that nothing is said before its end.

That its answers are the right ones, under every trouble, is for the simulation (tests/actors/test_simulation.py).
"""

from typing import Any

from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.messages import ChoiceTokens, StepTokens, WorkerLost
from triolet.protocol.requests import BeamRule
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Row, Step, StepDone

from .scheduling import Bench, admit, computed, ready, text


def scored(step: Step, *tops: dict[int, float]) -> StepDone:
    """The answer to a step: of each chunk that samples the most probable tokens."""
    rows = list[Row]()
    for chunk, top in zip(step.chunks, tops, strict=True):
        token, logprob = next(iter(top.items()))
        best = tuple(TopLogprob(*one) for one in top.items())
        scores = TokenLogprob(token_id=token, logprob=logprob, top=best)
        rows.append(Row(sequence=chunk.sequence, tokens=(token,), logprobs=(scores,)))
    return StepDone(step=step.step, rows=tuple(rows), duration=0.01, model_duration=0.005)


def search(bench: Bench, *, max_tokens: int = 3, **sampling: Any) -> None:
    """Two beams behind a prompt of a block and three tokens, both after their first token: 5 and 6."""
    bench.send(
        admit("a", text(67), n=2, beams=BeamRule(answers=2), max_tokens=max_tokens, sampling=Sampling(**sampling))
    )
    step = bench.plan()
    first = {5: -0.5, 6: -1.0, 7: -9.0, 8: -9.0}
    bench.send(scored(step, *[first] * len(step.chunks)))
    if len(step.chunks) == 1:  # the other waited for their prompt
        bench.send(scored(bench.plan(), first))


def said(bench: Bench) -> list[ChoiceTokens]:
    return [choice for text in bench.texts() if isinstance(text, StepTokens) for choice in text.choices()]


def test_a_beam_that_goes_on_computes_a_token_and_one_that_is_new_its_last_block() -> None:
    bench = Bench()
    search(bench, logprobs=1)
    step = bench.plan()
    assert computed(step) == {1: 1, 2: 4}
    assert step.dropped == (2,)
    (record,) = step.new
    assert (record.tokens[67:], record.sampling.logprobs) == ((6,), 4)
    bench.send(scored(step, {5: -0.1, 6: -5.0}, {6: -0.2, 5: -5.0}))
    step = bench.plan()
    assert computed(step) == {1: 1, 2: 1}
    assert not said(bench)
    bench.send(scored(step, {7: -0.1, 0: -3.0}, {0: -0.3, 5: -5.0}))
    assert [(one.index, one.tokens, one.reason, one.stop_token) for one in said(bench)] == [
        (1, (6, 6), "stop", 0),
        (0, (5, 5, 7), "length", None),
    ]
    assert not bench.state.table.requests


def test_beams_take_turns_where_there_is_one_row_and_wait_without_it() -> None:
    bench = Bench(worker=ready(max_running=1))
    search(bench)
    assert bench.whereabouts("a") == {0: "parked", 1: "step"}
    step = bench.plan()
    assert len(step.chunks) == 1
    bench.send(scored(step, {5: -0.1, 6: -5.0}))
    assert len(bench.plan().chunks) == 1
    assert sorted(bench.whereabouts("a").values()) == ["parked", "running"]


def test_a_beam_that_a_new_worker_has_no_room_for_fails_with_its_search() -> None:
    bench = Bench(worker=ready(context_length=80))
    search(bench, max_tokens=10)
    bench.send(WorkerLost(reason="killed"), ready(context_length=68))
    (failed,) = said(bench)
    assert (failed.reason, failed.error) == ("error", "context_length_exceeded")
