import math
from pathlib import Path
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.loadtest.serve.lengths import (
    BadDistribution,
    Fixed,
    Lognormal,
    Uniform,
    describe,
    draw_length,
    draw_value,
    read_distribution,
)


def test_distributions_are_read_as_they_are_written(tmp_path: Path) -> None:
    assert read_distribution("128") == read_distribution("fixed:128") == Fixed(128)
    assert read_distribution("uniform:32-256") == Uniform(32, 256)
    assert read_distribution("lognormal:200,0.8") == Lognormal(200, 0.8)
    path = tmp_path / "lengths.txt"
    path.write_text("# of a day\n7\n\n9\n")
    assert {draw_length(read_distribution(f"file:{path}"), Random(seed)) for seed in range(50)} == {7, 9}
    assert describe(read_distribution("uniform:32-256")) == "uniform 32–256"


@pytest.mark.parametrize(
    "text", ["", "many", "uniform:9", "uniform:9-3", "lognormal:0,1", "gauss:1,2", "-4", "file:/nowhere", "nan", "inf"]
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(BadDistribution):
        read_distribution(text)


def test_a_file_without_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("# nothing\n")
    with pytest.raises(BadDistribution, match="holds no number"):
        read_distribution(f"file:{path}")


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 100))
def test_uniform_lengths_stay_within_their_bounds(low: int, span: int, seed: int) -> None:
    assert low <= draw_length(Uniform(low, low + span), Random(seed)) <= low + span


@given(st.floats(0, 3), st.floats(0.01, 3), st.integers(0, 100))
def test_a_length_is_at_least_one(value: float, sigma: float, seed: int) -> None:
    assert draw_length(Fixed(value), Random(seed)) >= 1
    assert draw_length(Lognormal(max(value, 0.01), sigma), Random(seed)) >= 1


def test_a_lognormal_has_its_median_and_its_spread() -> None:
    draw, count = Random(1), 20_000
    values = [draw_value(Lognormal(200, 0.8), draw) for _ in range(count)]
    logs = [math.log(value) for value in values]
    mean = sum(logs) / count
    deviation = (sum((value - mean) ** 2 for value in logs) / count) ** 0.5
    # Four standard errors: 0.8·sqrt(pi/2)/sqrt(count) of the log median, 0.8/sqrt(2·count) of the deviation.
    assert abs(math.log(median(values) / 200)) < 4 * 0.8 * 1.2533 / count**0.5
    assert abs(deviation - 0.8) < 4 * 0.8 / (2 * count) ** 0.5
