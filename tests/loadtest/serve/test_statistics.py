import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.loadtest.serve.quantiles import curve, quantile, spread
from triolet.loadtest.serve.record import Record, open_gap, time_per_output_token, time_to_first_token
from triolet.loadtest.serve.slo import Slo
from triolet.loadtest.serve.statistics import Window, curves, summarise, tokens_in_windows

from .made import record

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)
WINDOW = Window(0.0, 10.0)


@given(VALUES, st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_a_quantile_is_the_least_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = quantile(sorted(values), share)
    covered = sum(value <= found for value in values) / len(values)
    below = sum(value < found for value in values) / len(values)
    assert found in values
    assert covered >= share - 1e-12
    assert below < share


@given(VALUES)
def test_a_spread_is_of_the_values_themselves(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert (found.count, found.max) == (len(values), max(values))
    assert math.isclose(found.mean, sum(values) / len(values), rel_tol=1e-9, abs_tol=1e-9)
    assert found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.max
    assert curve(values)[0] == min(values)
    assert curve(values)[-1] == max(values)


def test_percentiles_are_exact() -> None:
    found = spread([float(value) for value in range(1000, 0, -1)])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.p999, found.max) == (500, 900, 950, 990, 999, 1000)
    assert spread([]) is None
    assert curve([]) == []
    few = spread([1.0])
    assert few is not None
    assert few.p999 is None


def test_times_count_from_the_intended_start() -> None:
    held_up = record(intended=1.0, first=0.5, started=1.4)
    assert time_to_first_token(held_up) == pytest.approx(0.5)
    assert time_per_output_token(held_up) == pytest.approx(0.01)
    summary = summarise([held_up], WINDOW, Slo())
    assert summary.latencies.ttft is not None
    assert summary.latencies.ttft_started is not None
    assert summary.latencies.ttft.p50 == pytest.approx(0.5)
    assert summary.latencies.ttft_started.p50 == pytest.approx(0.1)


def test_time_per_token_takes_the_server_s_count_and_gaps_the_pieces() -> None:
    coalesced = record(pieces=5, output_tokens=9)
    assert time_per_output_token(coalesced) == pytest.approx(0.04 / 8)
    summary = summarise([coalesced], WINDOW, Slo())
    assert summary.latencies.itl is not None
    assert summary.latencies.itl.count == 4


def test_the_warm_up_is_left_out_and_its_tokens_are_not() -> None:
    """A request of the warm-up whose tokens come within the window fed a server that was measured."""
    early = record(intended=-0.05, phase="warm-up", first=0.1, outcome="reset", detail="gone")
    summary = summarise([early, record(intended=1.0)], WINDOW, Slo())
    assert (summary.requests, summary.failures, summary.output_tokens) == (1, 0, 5)
    assert summary.output_tokens_per_second == pytest.approx(1.0)
    assert summary.latencies.ttft is not None
    assert summary.latencies.ttft.count == 1


def test_who_cancels_or_reads_slowly_makes_no_latency() -> None:
    records = [
        record(),
        record(behaviour="cancels", outcome="cancelled", first=5.0),
        record(behaviour="slow", first=7.0, gap=1.0),
    ]
    summary = summarise(records, WINDOW, Slo(ttft=1.0))
    assert summary.latencies.ttft is not None
    assert summary.latencies.ttft.max == pytest.approx(0.1)
    assert (summary.requests, summary.failures) == (3, 0)
    assert summary.goodput is not None
    assert (summary.goodput.good, summary.goodput.judged) == (1, 1)
    assert [group.name for group in summary.behaviours] == ["cancels", "ordinary", "slow"]


def _silence(intended: float, waited: float, **changes: Any) -> Record:
    """A request that never had a token."""
    values: dict[str, Any] = {
        "outcome": "unfinished",
        "sent": None,
        "head": None,
        "output_tokens": 0,
        "detail": "given up",
        **changes,
    }
    return record(intended=intended, arrivals=[], ended=intended + waited, **values)


def test_a_server_that_stops_answering_is_in_the_percentiles() -> None:
    """28 answers at once and 72 that never came: 72 % of the waits were long, and say that they were longer yet."""
    records = [record(intended=number * 0.01, first=0.005) for number in range(28)]
    records += [_silence(1.0 + number * 0.01, 4.0 + number * 0.01) for number in range(72)]
    found = summarise(records, WINDOW, Slo()).latencies
    for spread_of in (found.ttft, found.ttft_started, found.e2e, found.e2e_started):
        assert spread_of is not None
        assert (spread_of.count, spread_of.at_least) == (100, 72)
        assert spread_of.open_from == pytest.approx(4.0)
        assert spread_of.p50 >= 4.0
        assert spread_of.is_bound(spread_of.p50)
    assert found.ttft is not None
    assert found.ttft.max == pytest.approx(4.71)
    assert max(curves(records)["ttft"]) == pytest.approx(4.71)


def test_an_open_gap_counts_and_what_lies_below_it_is_exact() -> None:
    stalled = record(intended=0.0, pieces=5, outcome="stalled", ended=60.14)
    found = summarise([record(pieces=100), stalled], WINDOW, Slo()).latencies.itl
    assert found is not None
    assert (found.count, found.at_least) == (99 + 5, 1)
    assert found.max == pytest.approx(60.0)
    assert [found.is_bound(value) for value in (found.p50, found.p99, found.max)] == [False, False, True]
    assert open_gap(record(outcome="reset", ended=9.0)) is None


def test_what_the_server_refuses_is_no_wait() -> None:
    """A refusal within a millisecond would make the percentiles better, not worse."""
    records = [record(), _silence(1.0, 0.001, outcome="refused"), _silence(1.0, 0.001, outcome="connect")]
    found = summarise(records, WINDOW, Slo()).latencies
    assert found.ttft is not None
    assert (found.ttft.count, found.ttft.at_least) == (1, 0)


def test_a_wait_in_the_client_that_was_given_up_bounds_nothing_from_its_start() -> None:
    """It waited for a place until the grace ended, and then had it for no time: what the others had may be too good."""
    found = summarise([record(), _silence(1.0, 5.0, started=6.0)], WINDOW, Slo()).latencies
    assert found.ttft is not None
    assert found.ttft_started is not None
    assert found.ttft.max == pytest.approx(5.0)
    assert found.ttft_started.max == pytest.approx(0.1)
    assert [found.ttft.is_bound(found.ttft.p50), found.ttft_started.is_bound(found.ttft_started.p50)] == [False, True]


def test_goodput_counts_failures_as_not_good() -> None:
    records = [record(), record(outcome="refused", arrivals=[], output_tokens=0, detail="full"), record(first=2.0)]
    summary = summarise(records, WINDOW, Slo(ttft=1.0))
    assert summary.goodput is not None
    assert summary.goodput.share == pytest.approx(1 / 3)
    assert summary.goodput.requests_per_second == pytest.approx(0.1)
    assert summary.outcomes == {"ok": 2, "refused": 1}
    assert summary.examples == {"refused": "full"}
    assert summarise(records, WINDOW, Slo()).goodput is None


def test_groups_are_by_tenant_and_priority() -> None:
    records = [record(tenant="a", priority=0), record(tenant="b", priority=5, first=1.0, outcome="reset")]
    summary = summarise(records, WINDOW, Slo())
    assert [(group.name, group.requests, group.failures) for group in summary.tenants] == [("a", 1, 0), ("b", 1, 1)]
    assert [group.name for group in summary.priorities] == ["0", "5"]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 20)), max_size=20), st.integers(1, 30))
def test_windows_hold_every_token_once(starts: list[tuple[float, int]], parts: int) -> None:
    records = [record(intended=start, pieces=pieces, output_tokens=2 * pieces) for start, pieces in starts]
    found = tokens_in_windows(records, Window(0.0, 20.0), parts)
    assert sum(found) == pytest.approx(2 * sum(pieces for _, pieces in starts))
    assert len(found) == parts


def test_tokens_after_the_window_do_not_count() -> None:
    assert sum(tokens_in_windows([record(intended=9.895, gap=0.02)], WINDOW)) == 1
    counted = record(intended=1.0, pieces=2, counts=[3, 4], output_tokens=7)
    assert tokens_in_windows([counted], Window(1.0, 2.0), 1) == [7.0]
