"""Finished steps whose rows are not the usual ones."""

import random
from typing import Any

import pytest

from triolet.actors.scheduler.sequence import Sequence
from triolet.actors.scheduler.step_results import Ending, append_tokens
from triolet.protocol.messages import Credit
from triolet.protocol.sampling import Sampling

from .scheduling import Bench, admit, done, text


def test_rows_of_several_tokens_are_paid_for_token_by_token() -> None:
    bench = Bench(outbox_tokens=16)
    bench.send(admit("a", text(10), max_tokens=500))
    while step := bench.state.plan():
        bench.send(done(step, count=4))
    live = bench.state.table.requests["a"]
    assert (len(live.choices[0].generated), live.credit) == (16, 0)
    bench.send(Credit(id="a", tokens=5))
    while step := bench.state.plan():
        bench.send(done(step, count=4))
    assert len(live.choices[0].generated) == 24  # the row that the last token of credit began may be longer
    assert live.credit == -3


def test_a_sampled_row_without_a_token_stops_the_engine() -> None:
    bench = Bench()
    bench.send(admit("a", text(10)))
    step = bench.state.plan()
    assert step is not None
    with pytest.raises(AssertionError, match="without a token"):
        bench.send(done(step, count=0))


def one_by_one(sequence: Sequence, tokens: tuple[int, ...]) -> Ending | None:
    """As `append_tokens`, looking at every token."""
    live = sequence.live
    for place, token in enumerate(tokens):
        may_stop = len(sequence.generated) >= live.generate.sampling.min_tokens
        sequence.generated.append(token)
        if place:
            sequence.total += 1
            live.spent += 1
        if may_stop and token in live.stop_token_ids:
            return Ending("stop", place + 1, place, None if token in live.eos_token_ids else token)
        if sequence.read >= sequence.max_total:
            return Ending("length", place + 1, place + 1)
    return None


@pytest.mark.parametrize("seed", range(50))
def test_a_row_ends_where_its_tokens_one_by_one_end(seed: int) -> None:
    rng = random.Random(seed)
    sampling = Sampling(min_tokens=rng.choice((0, 0, 5)))
    message = admit("a", text(10), max_tokens=rng.randrange(1, 30), stops=(0, 7), sampling=sampling)
    benches = [Bench(), Bench()]
    sequences: list[Any] = []
    for bench in benches:
        bench.send(message)
        sequences.append(bench.state.table.requests["a"].choices[0])
    ending = None
    while ending is None:
        tokens = tuple(rng.choices((0, 7, *range(100, 120)), k=rng.choice((1, 1, 1, 4, 9))))
        ending, wanted = append_tokens(sequences[0], tokens), one_by_one(sequences[1], tokens)
        assert ending == wanted
        states = [(it.generated, it.total, it.live.spent) for it in sequences]
        assert states[0] == states[1]
