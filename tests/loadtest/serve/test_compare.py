"""Planted differences are found, chance is not: every run here is made from a seed."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from triolet.loadtest.serve.arrivals import Constant
from triolet.loadtest.serve.bootstrap import BEYOND, MOST_NUMBERS, mean, rank, relative_difference, value_of
from triolet.loadtest.serve.compare import compare_runs
from triolet.loadtest.serve.mix import Mix, Tenant
from triolet.loadtest.serve.quantiles import quantile
from triolet.loadtest.serve.result import BadResult, Result, read_result, write_result
from triolet.loadtest.serve.slo import Slo

from .made import record, result_of, run_of

SMALL = 0.05  # the regression that must not be missed


def test_a_planted_regression_is_found() -> None:
    verdict = compare_runs(run_of(300, seed=1), run_of(300, seed=2, slower=1 + SMALL))
    calls = {each.metric: each.call for each in verdict.differences}
    assert verdict.call == "worse"
    assert calls["ttft mean"] == calls["tpot mean"] == calls["e2e p50"] == "worse"
    found = {each.metric: each.interval for each in verdict.differences}["tpot mean"]
    assert found is not None
    assert found.low < SMALL < found.high


def test_the_same_regression_the_other_way_is_an_improvement() -> None:
    assert compare_runs(run_of(300, seed=2, slower=1 + SMALL), run_of(300, seed=1)).call == "better"


def test_the_same_records_again_are_no_difference() -> None:
    result = run_of(100, seed=1)
    verdict = compare_runs(result, result)
    assert {each.call for each in verdict.differences if each.metric != "throughput"} == {"same"}
    assert verdict.call == "unsure"  # a closed loop's throughput varies within each run, which two runs alike show too
    assert "no difference is sure" in verdict.text
    opened = structs.replace(result, settings=structs.replace(result.settings, arrivals=Constant(20.0)))
    verdict = compare_runs(opened, opened)
    assert (verdict.call, verdict.text) == ("same", "no difference")


def test_chance_alone_is_not_called_a_regression() -> None:
    """Ten pairs of runs that differ in nothing but their noise, of which one in twenty may be called wrongly."""
    calls = [compare_runs(run_of(100, seed), run_of(100, seed + 100), resamples=1000).call for seed in range(10)]
    assert sum(call in ("worse", "better") for call in calls) <= 2


def test_what_is_sure_but_small_does_not_matter() -> None:
    verdict = compare_runs(run_of(200, 1), run_of(200, 1, slower=1.004), resamples=500)
    assert {each.metric: each.call for each in verdict.differences}["tpot mean"] == "same"
    assert verdict.call != "worse"
    assert compare_runs(run_of(200, 1), run_of(200, 1, slower=1.004), tolerance=0.001, resamples=500).call == "worse"


def test_pairs_need_the_same_requests() -> None:
    paired = compare_runs(run_of(100, 1), run_of(100, 2))
    other = compare_runs(run_of(100, 1), run_of(100, 2, concurrency=99))
    assert "in pairs" in paired.notes[0]
    assert "two samples" in other.notes[0]
    assert any("loads differ" in note for note in other.notes)


def test_a_run_that_its_client_held_up_gives_no_verdict() -> None:
    bound = run_of(100, 1)
    bound = structs.replace(bound, client=structs.replace(bound.client, bottleneck=True, reasons=("it was slow",)))
    verdict = compare_runs(run_of(100, 1), bound, resamples=500)
    assert (verdict.call, verdict.overloaded) == ("unsure", True)
    assert "in B the load client was itself the bottleneck" in verdict.text
    assert any("it was slow" in note for note in verdict.notes)


def test_failures_and_goodput_are_compared() -> None:
    whole = [record(intended=number * 0.05, conversation=number) for number in range(200)]
    broken = [
        record(intended=number * 0.05, conversation=number, outcome="reset" if number % 4 == 0 else "ok", detail="gone")
        for number in range(200)
    ]
    verdict = compare_runs(result_of(whole, slo=Slo(ttft=1.0)), result_of(broken, slo=Slo(ttft=1.0)))
    calls = {each.metric: (each.call, each.b) for each in verdict.differences}
    assert calls["answered"] == calls["good"] == ("worse", 0.75)
    assert any("50 of 200 requests failed" in note for note in verdict.notes)


def test_too_few_requests_leave_it_unsure() -> None:
    verdict = compare_runs(run_of(1, 1), run_of(1, 2))
    assert verdict.call != "worse"
    assert any(each.call == "unsure" for each in verdict.differences)


def test_the_bootstrap_s_statistics_are_the_report_s() -> None:
    values = sorted(float(value) for value in np.random.default_rng(1).normal(10, 1, 137))
    for share in (0.5, 0.95, 0.99):
        assert value_of(values, rank(share)) == quantile(values, share)
    assert value_of(values, mean) == pytest.approx(sum(values) / 137)


def test_intervals_cover_what_is_true_about_as_often_as_they_say() -> None:
    """Of 200 comparisons of independent values, 10 % may miss: 20, and four standard deviations of 4.2 around that.

    Intervals of half the width miss far more often, as intervals do that are too sure of themselves.
    """
    generator = np.random.default_rng(5)
    missed = missed_by_half = 0
    for seed in range(200):
        a, b = generator.lognormal(0, 0.3, 200).tolist(), (1.1 * generator.lognormal(0, 0.3, 200)).tolist()
        found = relative_difference(a, b, mean, paired=False, miss=0.1, seed=seed, resamples=400)
        assert found is not None
        missed += not found.low <= 0.1 <= found.high
        quarter = (found.high - found.low) / 4
        missed_by_half += not found.low + quarter <= 0.1 <= found.high - quarter
    assert 3 <= missed <= 37 < missed_by_half


@pytest.mark.parametrize("size", [50, 20_000])
def test_either_end_of_an_interval_has_resamples_beyond_it(size: int) -> None:
    """Long runs too, whose intervals are as wide as they must be: 2 z σ/√n of a mean, here within a tenth.

    The resamples of the long one draw fewer values; unscaled, its interval would be wider by √(n/m).
    """
    miss = 0.05 / 14
    generator = np.random.default_rng(3)
    a, b = generator.normal(10, 1, size).tolist(), generator.normal(10, 1, size).tolist()
    found = relative_difference(a, b, mean, paired=False, miss=miss)
    assert found is not None
    assert found.resamples * miss / 2 >= BEYOND - 1e-9
    if size * found.resamples > MOST_NUMBERS:
        wide = 2 * 2.914 * 0.1 * (2 / size) ** 0.5  # z of 0.05/28; the relative difference of two means
        assert found.high - found.low == pytest.approx(wide, rel=0.1)
        assert (size * found.resamples / MOST_NUMBERS) ** 0.5 > 1.2


def _stalled(cut: int, waited: float, slower: float = 1.0) -> Result:
    """Of 200 requests every so many-th, `cut` in all, never had a token and was given up after `waited` seconds."""
    records = [
        record(intended=number * 0.05, first=0.1 * slower, conversation=number)
        if not cut or number % (200 // cut)
        else record(
            intended=number * 0.05, arrivals=[], ended=number * 0.05 + waited, outcome="unfinished", output_tokens=0
        )
        for number in range(200)
    ]
    return result_of(records)


def test_what_was_given_up_is_compared_by_what_it_lasted_and_no_further() -> None:
    calls = {each.metric: each.call for each in compare_runs(_stalled(0, 0), _stalled(40, 5.0)).differences}
    assert (calls["ttft mean"], calls["ttft p95"], calls["ttft p50"]) == ("worse", "worse", "same")
    # Both stalled: whose waits would have been longer, nobody knows; the median is beyond doubt.
    verdict = compare_runs(_stalled(40, 4.0), _stalled(40, 5.0))
    calls = {each.metric: each.call for each in verdict.differences}
    assert (calls["ttft mean"], calls["ttft p95"], calls["ttft p50"]) == ("unsure", "unsure", "same")
    assert sum("lower bounds" in note for note in verdict.notes) == 2
    # A regression of the others is none the less seen, beside a few that were given up.
    calls = {each.metric: each.call for each in compare_runs(_stalled(4, 4.0), _stalled(4, 4.0, 1.5)).differences}
    assert calls["ttft p50"] == "worse"


def test_a_result_is_read_as_it_was_written_and_holds_no_key(tmp_path: Path) -> None:
    result = run_of(20, 1, mix=Mix(tenants=(Tenant(name="a", key="SECRET"),)))
    write_result(result, tmp_path / "a.json")
    assert read_result(tmp_path / "a.json") == result
    assert "SECRET" not in (tmp_path / "a.json").read_text()


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other"}', "[1]"])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadResult, match=r"x\.json"):
        read_result(path)
