from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.loadtest.serve.arrivals import Arrivals, Constant, Gamma, Ramp, Recorded, start_times

RATES = st.floats(0.1, 1000)


def _gaps(arrivals: Arrivals, count: int, seed: int = 1) -> list[float]:
    times = [0.0, *islice(start_times(arrivals, seed), count)]
    return [later - earlier for earlier, later in pairwise(times)]


@given(RATES, st.floats(0.1, 10), st.integers(0, 1000))
def test_starts_ascend_and_the_seed_decides_them(rate: float, burstiness: float, seed: int) -> None:
    for arrivals in (Constant(rate), Gamma(rate, burstiness), Ramp(rate, 2 * rate, 10.0)):
        times = list(islice(start_times(arrivals, seed), 50))
        assert times == sorted(times)
        assert times == list(islice(start_times(arrivals, seed), 50))


def test_a_constant_rate_is_even() -> None:
    assert list(islice(start_times(Constant(4.0), 1), 4)) == [0.0, 0.25, 0.5, 0.75]


def _shape(gaps: list[float]) -> tuple[float, float]:
    """Mean, and the squared coefficient of variation: 1/burstiness for gamma gaps."""
    mean = sum(gaps) / len(gaps)
    return mean, sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_their_mean_and_their_burstiness(burstiness: float) -> None:
    count = 20_000
    mean, spread = _shape(_gaps(Gamma(5.0, burstiness), count))
    # The mean's standard error is mean/sqrt(count·burstiness); four of them. The spread's own error is larger by the
    # gamma distribution's kurtosis: its relative variance is (2 + 6/burstiness)/count, and a part of the mean's.
    assert mean == pytest.approx(0.2, rel=4 / (count * burstiness) ** 0.5)
    allowed = 4 * ((2 + 10 / burstiness) / count) ** 0.5
    assert spread == pytest.approx(1 / burstiness, rel=allowed)
    assert spread != pytest.approx(1 / (burstiness * 1.5), rel=allowed)


def test_a_ramp_s_arrivals_follow_the_integral_of_its_rate() -> None:
    """From 0 to 200 a second over 50 s, 5,000 are expected and a quarter of them in the first half."""
    times = list(start_times(Ramp(0.0, 200.0, 50.0), 3))
    first = sum(time < 25 for time in times)
    assert times[-1] < 50
    assert abs(len(times) - 5000) < 4 * 5000**0.5
    assert abs(first - 1250) < 4 * 1250**0.5
    down = sum(time < 25 for time in start_times(Ramp(200.0, 0.0, 50.0), 3))
    assert abs(down - 3750) < 4 * 3750**0.5


def test_a_level_ramp_is_a_poisson_process() -> None:
    times = list(start_times(Ramp(10.0, 10.0, 100.0), 1))
    assert abs(len(times) - 1000) < 4 * 1000**0.5


def test_a_trace_is_scaled() -> None:
    assert list(start_times(Recorded("x", 0.5), 1, [0.0, 1.0, 3.0])) == [0.0, 0.5, 1.5]
