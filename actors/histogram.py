"""A histogram of plain integers, for thousands of observations a second: each is a bisection and two additions."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from ..protocol.reports import HistogramFigures


class Histogram:
    """Counts per bucket. A bucket includes its upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def figures(self) -> HistogramFigures:
        return HistogramFigures(tuple(self.counts), self.sum)

    def absorb(self, figures: HistogramFigures) -> None:
        """Add the observations of another histogram with the same bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, figures.counts, strict=True)]
        self.sum += figures.sum

    def cumulative(self) -> list[tuple[str, float]]:
        """`(upper bound, observations up to it)`, as in Prometheus."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*(str(float(bound)) for bound in self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows
