"""A report's charts as data, in the units shown. Pure; plots.py draws them."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .lag import MOST_LAG
from .quantiles import CURVE_POINTS
from .result import RequestSample, Result
from .text_report import METRICS

MOST_DOTS = 2000  # in a scatter plot; more would enlarge the page and show nothing new
LEAST_MS = 0.01  # the left end of a logarithmic axis


class Line(Struct, frozen=True, kw_only=True):
    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    style: Literal["line", "dots"] = "line"
    labels: tuple[str, ...] = ()  # beside the dots


class Chart(Struct, frozen=True, kw_only=True):
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False  # from the least value on; otherwise from 0
    limit: tuple[float, str] | None = None  # a horizontal line and what it means
    shaded_until: float | None = None  # the warm-up
    x_range: tuple[float, float] | None = None  # None: that of the values


def charts(result: Result) -> list[Chart]:
    """The charts that have data."""
    series, warmup = result.series, result.settings.warmup_seconds or None
    steps = tuple(round(place * series.step, 4) for place in range(len(series.in_flight)))

    def over_time(title: str, y_label: str, *lines: Line, limit: tuple[float, str] | None = None) -> Chart:
        return Chart(
            title=title,
            x_label="seconds",
            y_label=y_label,
            lines=lines,
            limit=limit,
            shaded_until=warmup,
            x_range=(0.0, steps[-1] + series.step),
        )

    found = [
        over_time("Output", "tokens/s", Line(name="tokens/s", xs=steps, ys=tuple(series.tokens_per_second))),
        over_time(
            "Requests in flight",
            "requests",
            Line(name="in flight", xs=steps, ys=tuple(map(float, series.in_flight))),
            *([Line(name="failures in the step", xs=steps, ys=tuple(map(float, series.failures)))]
              if any(series.failures) else []),
        ),
        Chart(
            title="Distribution of latencies",
            x_label="milliseconds",
            y_label="share of values",
            lines=tuple(_distribution(METRICS[name], result.curves[name]) for name in METRICS if result.curves[name]),
            log_x=True,
        ),
        over_time("Time to first token", "milliseconds", _first_tokens(result.samples)),
        over_time("End to end", "milliseconds", _ends(result.samples)),
        over_time(
            "How late the client's own wake-ups came",
            "milliseconds",
            Line(name="latest in the step", xs=steps, ys=tuple(lag * 1000 for lag in series.lag)),
            limit=(MOST_LAG * 1000, "allowed for 99 % of them"),
        ),
    ]  # fmt: skip
    return [chart for chart in found if any(len(line.xs) > 1 for line in chart.lines)]


def _distribution(name: str, curve: Sequence[float]) -> Line:
    """Share of values ≤ x. Pieces that arrive together have a gap of 0, which a logarithmic axis cannot show."""
    shares = tuple(place / CURVE_POINTS for place in range(len(curve)))
    return Line(name=name, xs=tuple(max(LEAST_MS, value * 1000) for value in curve), ys=shares)


def _thinned(samples: Sequence[RequestSample]) -> Sequence[RequestSample]:
    return samples[:: -(-len(samples) // MOST_DOTS) or 1]


def _first_tokens(samples: Sequence[RequestSample]) -> Line:
    points = [(sample.started, sample.ttft * 1000) for sample in _thinned(samples) if sample.ttft is not None]
    return Line(name="a request", xs=tuple(x for x, _ in points), ys=tuple(y for _, y in points), style="dots")


def _ends(samples: Sequence[RequestSample]) -> Line:
    points = [(sample.started, sample.e2e * 1000) for sample in _thinned(samples) if sample.e2e is not None]
    return Line(name="a request", xs=tuple(x for x, _ in points), ys=tuple(y for _, y in points), style="dots")
