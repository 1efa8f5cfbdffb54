"""Exact quantiles by nearest rank: always a value that occurred, never one estimated from a histogram."""

import math
from collections.abc import Sequence

from msgspec import Struct

CURVE_POINTS = 200  # on a distribution's curve, for plots


class Spread(Struct, frozen=True, kw_only=True):
    """A metric over the requests (or gaps) that have it. `p999` needs a thousand values.

    `at_least` of the values are waits that were given up; their true times are longer. The smallest is `open_from`.
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
        """Whether a quantile is a lower bound. Quantiles below every given-up wait are exact."""
        return self.open_from is not None and quantile >= self.open_from


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed. `ordered` is ascending, not empty."""
    # The product of share and count may exceed a whole number by a rounding error.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def spread(values: Sequence[float], at_least: Sequence[float] = ()) -> Spread | None:
    """Summarise the known values and the lower bounds `at_least`; a bound counts as its value."""
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
    """The distribution as `CURVE_POINTS` + 1 evenly spaced quantiles, including smallest and largest."""
    ordered = sorted(values)
    return [quantile(ordered, place / CURVE_POINTS) for place in range(CURVE_POINTS + 1)] if ordered else []
