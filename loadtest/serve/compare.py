"""Compares two results: every difference with its interval, and a verdict.

The probability that any interval misses is 0.05 in total (split by Bonferroni). A difference is called a regression
or improvement if its interval excludes zero *and* it is at least `tolerance`. Certain but unimportant differences
are reported as such. The intervals cover only the chance in when requests came and how long each took. They cannot
show that the machine itself was slower that day.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct, structs

from .bootstrap import RESAMPLES, Interval, Statistic, mean, rank, relative_difference, value_of
from .result import RequestSample, Result
from .settings import TOLERANCE
from .text_report import load_text

MISS: Final = 0.05  # for all metrics together
PAIRED_SHARE: Final = 0.9  # share of requests that must be in both runs for a paired comparison

Call = Literal["worse", "better", "same", "unsure"]


class Metric(Struct, frozen=True, kw_only=True):
    key: str
    title: str
    more_is_better: bool = False


class Difference(Struct, frozen=True, kw_only=True):
    metric: str
    title: str
    a: float
    b: float
    unit: str
    interval: Interval | None  # None: too few values
    call: Call


class Verdict(Struct, frozen=True, kw_only=True):
    a: str
    b: str
    call: Call
    text: str
    overloaded: bool  # the client was the bottleneck in one run, so there is no verdict
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


_LATENCIES: Final = {
    "ttft": "time to first token",
    "itl": "inter-token latency, mean of a request",
    "tpot": "time per output token",
    "e2e": "end to end",
}
_STATISTICS: Final[tuple[tuple[str, Statistic], ...]] = (("mean", mean), ("p50", rank(0.5)), ("p95", rank(0.95)))
_RATES: Final = (
    Metric(key="throughput", title="output tokens/s", more_is_better=True),
    Metric(key="answered", title="whole answers", more_is_better=True),
)
_GOODPUT: Final = Metric(key="good", title="requests within the objective", more_is_better=True)


def compare_runs(a: Result, b: Result, tolerance: float = TOLERANCE, resamples: int = RESAMPLES) -> Verdict:
    """Compare B with A. Uses more than `resamples` if the many intervals need them."""
    paired = _asked_the_same(a, b)
    pairs = _pairs(a.samples, b.samples) if paired else None
    first, second = pairs or (a.samples, b.samples)
    paired = pairs is not None
    judged_goodput = a.summary.goodput is not None and a.settings.slo == b.settings.slo
    rates = (*_RATES, *((_GOODPUT,) if judged_goodput else ()))
    miss = MISS / (len(_LATENCIES) * len(_STATISTICS) + len(rates))
    found: list[Difference] = []
    for key, title in _LATENCIES.items():
        ours, theirs = _values(first, second, key, paired=paired)
        for name, statistic in _STATISTICS:
            interval = relative_difference(ours, theirs, statistic, paired=paired, miss=miss, resamples=resamples)
            difference = _difference(
                Metric(key=f"{key} {name}", title=f"{title}, {name}"), ours, theirs, statistic, interval, tolerance, "s"
            )
            bounds = [_is_bound(each, key, statistic) for each in (first, second)]
            found.append(structs.replace(difference, call=_with_bounds(difference.call, *bounds)))
    for metric in rates:
        ours, theirs = _rates(a, b, first, second, metric.key)
        # Windows of two runs are pairs only if arrivals were equal; closed-loop clients make their own.
        pairwise = paired and (metric.key != "throughput" or a.settings.arrivals is not None)
        interval = relative_difference(ours, theirs, mean, paired=pairwise, miss=miss, resamples=resamples)
        unit = "tokens/s" if metric.key == "throughput" else "share"
        found.append(_difference(metric, ours, theirs, mean, interval, tolerance, unit))
    return _verdict(a, b, found, _notes(a, b, paired=paired))


def _asked_the_same(a: Result, b: Result) -> bool:
    """Whether both runs sent the same requests. The server and the length of the run may differ."""
    plain = {"url": "", "model": None, "seconds": None, "requests": None, "warmup_seconds": 0.0}
    return structs.replace(a.settings, **plain) == structs.replace(b.settings, **plain)


def _pairs(
    a: Sequence[RequestSample], b: Sequence[RequestSample]
) -> tuple[list[RequestSample], list[RequestSample]] | None:
    theirs = {(sample.conversation, sample.turn): sample for sample in b}
    pairs = [(sample, other) for sample in a if (other := theirs.get((sample.conversation, sample.turn)))]
    if not pairs or len(pairs) < PAIRED_SHARE * max(len(a), len(b)):
        return None
    return [ours for ours, _ in pairs], [other for _, other in pairs]


def _values(
    a: Sequence[RequestSample], b: Sequence[RequestSample], key: str, *, paired: bool
) -> tuple[list[float], list[float]]:
    ours: list[float | None] = [getattr(sample, key) for sample in a]
    theirs: list[float | None] = [getattr(sample, key) for sample in b]
    if paired:
        both = [(x, y) for x, y in zip(ours, theirs, strict=True) if x is not None and y is not None]
        return [x for x, _ in both], [y for _, y in both]
    return [x for x in ours if x is not None], [y for y in theirs if y is not None]


def _is_bound(samples: Sequence[RequestSample], key: str, statistic: Statistic) -> bool:
    """Whether given-up waits, whose true length is unknown, could have made the statistic larger."""
    known: list[tuple[float | None, bool]] = [(getattr(sample, key), sample.is_bound(key)) for sample in samples]
    values = [(value, bound) for value, bound in known if value is not None]
    if not any(bound for _, bound in values):
        return False
    at_most = value_of([math.inf if bound else value for value, bound in values], statistic)
    return at_most != value_of([value for value, _ in values], statistic)


def _with_bounds(call: Call, a: bool, b: bool) -> Call:
    """The part of a verdict that holds even if A's or B's time was longer than recorded."""
    if (call == "same" and (a or b)) or (call == "worse" and a) or (call == "better" and b):
        return "unsure"
    return call


def _rates(
    a: Result, b: Result, first: Sequence[RequestSample], second: Sequence[RequestSample], key: str
) -> tuple[list[float], list[float]]:
    if key == "throughput":
        return _per_second(a), _per_second(b)
    name = "ok" if key == "answered" else "good"
    return [float(getattr(sample, name)) for sample in first], [float(getattr(sample, name)) for sample in second]


def _per_second(result: Result) -> list[float]:
    step = (result.window[1] - result.window[0]) / len(result.windows)
    return [tokens / step for tokens in result.windows] if step > 0 else []


def _difference(
    metric: Metric, a: Sequence[float], b: Sequence[float], statistic: Statistic, interval: Interval | None,
    tolerance: float, unit: str,
) -> Difference:  # fmt: skip
    ours, theirs = (value_of(each, statistic) if each else 0.0 for each in (a, b))
    return Difference(
        metric=metric.key,
        title=metric.title,
        a=ours,
        b=theirs,
        unit=unit,
        interval=interval,
        call=_call(interval, tolerance, more_is_better=metric.more_is_better),
    )


def _call(interval: Interval | None, tolerance: float, *, more_is_better: bool) -> Call:
    if interval is None:
        return "unsure"
    if interval.low <= 0 <= interval.high:
        # Narrow enough to rule out what would matter, or not.
        return "same" if max(-interval.low, interval.high) <= 2 * tolerance else "unsure"
    if abs(interval.difference) < tolerance:
        return "same"
    return "better" if (interval.difference > 0) == more_is_better else "worse"


def _verdict(a: Result, b: Result, found: Sequence[Difference], notes: Sequence[str]) -> Verdict:
    worse = [each.title for each in found if each.call == "worse"]
    better = [each.title for each in found if each.call == "better"]
    call: Call
    bound = [label for label, each in (("A", a), ("B", b)) if each.client.bottleneck]
    if bound:
        call, text = "unsure", f"it cannot be told: in {' and '.join(bound)} the load client was itself the bottleneck"
    elif worse:
        call, text = "worse", f"B is worse in {_list(worse)}" + (f"; and better in {_list(better)}" if better else "")
    elif better:
        call, text = "better", f"B is better in {_list(better)}"
    elif all(each.call == "same" for each in found):
        call, text = "same", "no difference"
    else:
        call, text = "unsure", "no difference is sure; some could be there: longer runs would tell"
    return Verdict(
        a=a.name, b=b.name, call=call, text=text, overloaded=bool(bound), differences=tuple(found), notes=tuple(notes)
    )


def _notes(a: Result, b: Result, *, paired: bool) -> list[str]:
    notes = [
        "Both asked the same, request by request: compared in pairs." if paired
        else "Not the same requests: compared as two samples, which needs longer runs for the same certainty."
    ]  # fmt: skip
    for label, result in (("A", a), ("B", b)):
        if result.client.bottleneck:
            notes.append(f"In {label} the load client was itself the bottleneck: {'; '.join(result.client.reasons)}.")
        if result.summary.failures:
            notes.append(f"In {label} {result.summary.failures} of {result.summary.requests} requests failed.")
        if left := sum(sample.given_up for sample in result.samples):
            notes.append(f"In {label} {left} requests were given up: their times are lower bounds.")
    ours, theirs = (f"{load_text(each.settings)}, {each.settings.api}" for each in (a, b))
    if ours != theirs:
        notes.append(f"The loads differ. A: {ours}. B: {theirs}.")
    return notes


def _list(titles: Sequence[str]) -> str:
    return "; ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
