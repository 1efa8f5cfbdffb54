"""Finished steps whose rows are not the usual ones."""

import pytest

from triolet.protocol.messages import Credit

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
