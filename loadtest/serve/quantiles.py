"""Exact quantiles: a value that occurred, by nearest rank. No histogram stands between a record and its percentile."""

import math
from collections.abc import Sequence

from msgspec import Struct

CURVE_POINTS = 200  # of a distribution's curve, for plots


class Spread(Struct, frozen=True, kw_only=True):
    """A metric over the requests (or gaps) that have it. `p999` needs a thousand values.

    `at_least` of the values are waits that were given up: the true ones are longer, the smallest than `open_from`.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float | None
    max: float
    at_least: int = 0
    open_from: float | None = None

    def is_bound(self, quantile: float) -> bool:
        """Whether a quantile is a lower bound: what lies below every wait that was given up stays where it is."""
        return self.open_from is not None and quantile >= self.open_from


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not exceed. `ordered` ascends and is not empty."""
    # The product of a share and a count may lie a rounding error above a whole number.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def spread(values: Sequence[float], at_least: Sequence[float] = ()) -> Spread | None:
    """Of the known values and of those known to be `at_least` so large, which count as what they are at least."""
    ordered = sorted([*values, *at_least])
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        p999=quantile(ordered, 0.999) if len(ordered) >= 1000 else None,
        max=ordered[-1],
        at_least=len(at_least),
        open_from=min(at_least, default=None),
    )


def curve(values: Sequence[float]) -> list[float]:
    """The distribution as `CURVE_POINTS` + 1 quantiles at even shares, the smallest and the largest included."""
    ordered = sorted(values)
    return [quantile(ordered, place / CURVE_POINTS) for place in range(CURVE_POINTS + 1)] if ordered else []
