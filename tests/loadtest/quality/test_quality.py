"""Perplexity and divergence of a precision, on the bundled model: against their definitions, and able to fail."""

from pathlib import Path

import numpy as np
import pytest

from triolet.actors.tokenizer.text_tokenizer import load_text_tokenizer
from triolet.loadtest.heldout import HELD_OUT
from triolet.loadtest.quality.logits import load_on_cpu, logits_of
from triolet.loadtest.quality.quality import (
    SCATTER,
    divergences,
    log_softmax,
    measure,
    perplexity,
    served_logprobs,
    windows_of_conversations,
    windows_of_text,
)

MODEL = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
FLOAT32 = {"dtype": "float32", "quantize": "none", "threads": 2}


def _windows() -> list[list[int]]:
    tokenizer = load_text_tokenizer(str(MODEL))
    return windows_of_conversations(tokenizer, HELD_OUT, 150, tokenizer.tokenizer.get_vocab_size())


def test_log_softmax_is_that_of_the_definition() -> None:
    logits = np.array([[0.0, np.log(3.0)], [1000.0, 1000.0]], np.float32)
    # float32's log 3 is off by 5e-8; the second row overflows where the largest is not taken out first
    np.testing.assert_allclose(np.exp(log_softmax(logits)), [[0.25, 0.75], [0.5, 0.5]], rtol=1e-6)


def test_the_served_log_probabilities_are_those_of_the_raw_logits() -> None:
    windows = _windows()
    runner = load_on_cpu(MODEL, FLOAT32, max(map(len, windows)))
    served = served_logprobs(runner, windows)
    raw = np.concatenate(
        [
            log_softmax(np.concatenate([part.copy() for _, part in logits_of(runner, window)]))[
                np.arange(len(window) - 1), window[1:]
            ]
            for window in windows
        ]
    )
    runner.close()
    # The sampler sums 2,048 exponentials in float32: 2,048 half units in the last place of a sum, 1.2e-4, at worst.
    np.testing.assert_allclose(served, raw, atol=2e-4)
    assert np.abs(served[:-1] - raw[1:]).max() > 0.1  # shifted by one place they are others
    assert perplexity(served) < 10


def test_a_model_does_not_diverge_from_itself_and_fewer_bits_diverge_more() -> None:
    windows = _windows()
    longest = max(map(len, windows))
    reference, same = load_on_cpu(MODEL, FLOAT32, longest), load_on_cpu(MODEL, FLOAT32, longest)
    rows, agreed = divergences(reference, same, windows)
    assert rows.shape == (sum(map(len, windows)),)
    assert (np.abs(rows).max(), agreed) == (0.0, 1.0)
    same.close()
    eight = load_on_cpu(MODEL, {"quantize": "int8", "threads": 2}, longest)
    four = load_on_cpu(MODEL, {"quantize": "int4", "threads": 2}, longest)
    losses = [divergences(reference, variant, windows)[0].mean() for variant in (eight, four)]
    for runner in (reference, eight, four):
        runner.close()
    assert 0 < losses[0] < losses[1] < 0.1


def test_a_text_is_cut_into_windows_and_measured(tmp_path: Path) -> None:
    tokenizer = load_text_tokenizer(str(MODEL))
    windows = windows_of_text(tokenizer, "What is 2 + 2? The sum is 4. " * 60, 300, 2048)
    assert [len(window) for window in windows] == [256, 44]
    (row,) = measure(MODEL, {"int8": {"quantize": "int8", "threads": 2}}, windows[1:], "a text")
    assert (row["name"], row["tokens"], row["text"], row["note"]) == ("int8", 44, "a text", "")
    assert row["perplexity"] == pytest.approx(row["reference_perplexity"], rel=0.1)


def test_conversations_come_from_all_over_the_file() -> None:
    """Its lines are in order of families; a multiple of a prime visits each once, neighbours far apart."""
    count = sum('"check": "exact"' in line for line in HELD_OUT.read_text().splitlines())
    places = [place * SCATTER % count for place in range(count)]
    assert len(set(places)) == count
    eighths = {place * 8 // count for place in places[:16]}
    assert eighths == set(range(8))
