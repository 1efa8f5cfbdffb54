"""Greedy answers judged by one pass of the runner and by the definition: right ones pass, a wrong one is seen."""

from pathlib import Path

import numpy as np
import pytest

from triolet.loadtest.quality.logits import load_on_cpu, logits_of
from triolet.loadtest.quality.tokens import check, judge

MODEL = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
Float32Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def test_a_wrong_token_and_its_gap_are_seen() -> None:
    rows = np.array([[0.0, 9.0, 0.0], [0.0, 1.0, 3.0], [5.0, 1.0, 0.0]], np.float32)

    def logits(tokens: list[int]) -> Float32Array:
        return rows[: len(tokens)]

    right = judge([([7], [1, 2, 0])], logits)
    assert (right.tokens, right.equal, right.worst_gap) == (3, 3, 0.0)
    wrong = judge([([7], [1, 1, 0])], logits)
    assert (wrong.tokens, wrong.equal) == (3, 2)
    assert wrong.worst_gap == pytest.approx(2 / rows[1].std())


@pytest.mark.parametrize(
    "settings", [{"dtype": "float32", "quantize": "none"}, {"quantize": "int8"}, {"quantize": "int4"}]
)
def test_the_runner_decoding_token_by_token_answers_as_its_own_single_pass(settings: dict[str, str]) -> None:
    runner = load_on_cpu(MODEL, {**settings, "threads": 2}, 64)
    prompt = [20, 300, 41, 7]
    answer: list[int] = []
    for _ in range(6):
        *_, (_, logits) = logits_of(runner, [*prompt, *answer])
        answer.append(int(logits[-1].argmax()))
    runner.close()
    found = check(MODEL, {**settings, "threads": 2}, [(prompt, answer)])
    assert (found["tokens"], found["equal_runner"]) == (6, 6)
    # The definition differs by float32 sums alone; what it does not round is worth some hundredths of a deviation.
    assert found["worst_gap"] <= (0.0 if "dtype" in settings else 0.5)
    answer[3] = (answer[3] + 1) % 2048
    planted = check(MODEL, {**settings, "threads": 2}, [(prompt, answer)])
    assert planted["equal_runner"] < 6
    assert planted["worst_gap"] > 0.5
