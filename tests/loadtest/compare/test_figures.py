import pytest

from triolet.loadtest.compare.figures import Arrival, Figures, Round, figures_of, medians


def _round(arrivals: list[Arrival], batch: int, model_seconds: float = 0.0) -> Round:
    return Round(submitted=10.0, prompt_tokens=100, batch=batch, arrivals=arrivals, model_seconds=model_seconds)


def test_one_sequence() -> None:
    arrivals = [Arrival(12.0 + 0.5 * i, 0, 1) for i in range(5)]  # first after 2 s, then one each 0.5 s
    figures = figures_of(_round(arrivals, batch=1, model_seconds=3.0))
    assert figures == Figures(
        prefill_tok_s=50.0, decode_tok_s=2.0, full_batch_tok_s=2.0, output_tok_s=5 / 4, step_ms_p50=500.0,
        outside_model_share=0.25,
    )  # fmt: skip


def test_decode_begins_when_the_last_sequence_has_its_first_token() -> None:
    arrivals = [Arrival(11.0, 0, 1), Arrival(12.0, 0, 1), Arrival(12.0, 1, 1), Arrival(13.0, 0, 1), Arrival(13.0, 1, 1)]
    figures = figures_of(_round(arrivals, batch=2))
    assert figures.prefill_tok_s == 200 / 2.0
    assert figures.decode_tok_s == 2.0
    assert figures.output_tok_s == 5 / 3.0


def test_the_full_batch_ends_with_the_first_sequence() -> None:
    """Sequence 0 is through at 13: what sequence 1 decodes alone, faster, counts as decode but not as full batch."""
    first = [Arrival(time, 0, 1) for time in (11.0, 12.0, 13.0)]
    second = [Arrival(time, 1, 1) for time in (12.0, 13.0, 13.25, 13.5)]
    figures = figures_of(_round(sorted([*first, *second], key=lambda arrival: arrival.time), batch=2))
    assert figures.full_batch_tok_s == 2.0
    assert figures.decode_tok_s == 4 / 1.5


def test_tokens_that_came_together_share_their_gap() -> None:
    arrivals = [Arrival(11.0, 0, 1), Arrival(12.0, 0, 1), Arrival(15.0, 0, 3)]
    assert figures_of(_round(arrivals, batch=1)).step_ms_p50 == 1000.0


def test_a_single_token_has_no_decode() -> None:
    figures = figures_of(_round([Arrival(11.0, 0, 1)], batch=1))
    assert (figures.decode_tok_s, figures.step_ms_p50) == (0.0, 0.0)


def test_a_sequence_without_a_token_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="1 of 2 sequences"):
        figures_of(_round([Arrival(11.0, 0, 1)], batch=2))


def test_medians_are_taken_figure_by_figure() -> None:
    rows = [
        Figures(
            prefill_tok_s=a, decode_tok_s=b, full_batch_tok_s=b, output_tok_s=1, step_ms_p50=1, outside_model_share=0
        )
        for a, b in ((1, 9), (2, 7), (3, 8))
    ]
    result = medians(rows)
    assert (result.prefill_tok_s, result.decode_tok_s) == (2, 8)
