import pytest

from triolet.loadtest.compare.cases import CASES, Case, ImpossibleTimes, round_of, value_of

PAIR = Case(name="pair", title="", prompt_tokens=10, output_tokens=3, batch=2, repeats=1, figure="full_batch_tok_s")


def test_times_become_the_case_s_figure() -> None:
    """Both decode from 2 s to 4 s, four tokens: 2 tokens/s."""
    assert value_of(PAIR, round_of(PAIR, [[1.0, 3.0, 4.0], [2.0, 3.0, 4.0]])) == 2.0


def test_a_prefill_needs_one_token_of_each() -> None:
    case = CASES["prefill_512"]
    assert value_of(case, round_of(case, [[0.25]])) == 2048.0


def test_sequences_that_never_ran_together_have_no_figure() -> None:
    with pytest.raises(ImpossibleTimes, match="never ran all at once"):
        value_of(PAIR, round_of(PAIR, [[1.0, 1.5, 2.0], [3.0, 4.0, 5.0]]))


@pytest.mark.parametrize(
    "times",
    [[[1.0, 2.0, 3.0]], [[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]], [[-1.0, 0, 1], [0, 1, 2]]],
)
def test_times_that_no_run_can_have_are_refused(times: list[list[float]]) -> None:
    with pytest.raises(ImpossibleTimes):
        round_of(PAIR, times)


def test_the_long_case_leaves_a_window_in_which_all_decode() -> None:
    """With 512 tokens a step, the first of the sequences decodes while the others' prompts still run."""
    case = CASES["batch_16_context_1024"]
    steps_of_prefill = -(-case.batch * case.prompt_tokens // (512 - case.batch))
    assert case.output_tokens - steps_of_prefill >= 48
