"""Confidence intervals of differences between two runs: block bootstrap over requests. Pure, fixed by its seed.

Neighbouring requests meet the same queue, so they are drawn in blocks of neighbours (about n^(1/3) of them, in a
circle). Drawing single requests would make the intervals too narrow. If both runs sent the same requests, they are
drawn in pairs, so the effect of answer lengths on latency cancels out.

An interval's end is a quantile of the resamples. With few resamples beyond it, it would be left to chance. So there are
enough resamples to leave `BEYOND` outside each end. In long runs each resample draws fewer values than there are
(m out of n), and its variation is scaled by √(m/n), like the spread of a mean or a quantile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

RESAMPLES: Final = 4000  # at least
BEYOND: Final = 20  # at each end: the end's rank among the resamples is then known to about a quarter (1/√20)
MOST_NUMBERS: Final = 40_000_000  # drawn per metric and side; above it each resample draws fewer
CHUNK_NUMBERS: Final = 200_000  # at a time: arrays of 16 MB are new memory each time, which took half of the time

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # over the last axis


class Interval(Struct, frozen=True, kw_only=True):
    """The relative difference of B from A: 0.05 means 5 % more."""

    difference: float
    low: float
    high: float
    paired: bool
    count: tuple[int, int]
    resamples: int


def mean(values: Floats) -> Floats:
    return np.asarray(np.mean(values, axis=-1))


def rank(share: float) -> Statistic:
    """The quantile by nearest rank, as `quantiles.quantile`."""

    def at(values: Floats) -> Floats:
        place = max(0, int(np.ceil(share * values.shape[-1] - 1e-9)) - 1)
        return np.asarray(np.partition(values, place, axis=-1)[..., place])

    return at


def value_of(values: Sequence[float], statistic: Statistic) -> float:
    return float(statistic(np.asarray(values, dtype=np.float64)))


def relative_difference(
    a: Sequence[float], b: Sequence[float], statistic: Statistic, *, paired: bool, miss: float, seed: int = 1,
    resamples: int = RESAMPLES,
) -> Interval | None:  # fmt: skip
    """The interval misses the true difference with probability `miss`. None without values, or if A has a 0.

    `paired`: a[i] and b[i] belong to the same request.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.size < 2 or second.size < 2 or (paired and first.size != second.size):
        return None
    base = float(statistic(first))
    if base <= 0:
        return None
    generator = np.random.default_rng(seed)
    draws = max(resamples, math.ceil(BEYOND / (miss / 2)))
    longest = max(first.size, second.size)
    part = min(1.0, MOST_NUMBERS / draws / longest)
    differences: list[Floats] = []
    left = draws
    while left > 0:
        rows = int(max(1, min(left, CHUNK_NUMBERS // (part * longest))))
        places = _blocks(first.size, rows, part, generator)
        ours = statistic(first[places])
        theirs = statistic(second[places if paired else _blocks(second.size, rows, part, generator)])
        differences.append(np.divide(theirs, ours, out=np.ones_like(ours), where=ours > 0) - 1)
        left -= rows
    difference = float(statistic(second)) / base - 1
    found = difference + (np.concatenate(differences) - difference) * math.sqrt(part)
    low, high = np.quantile(found, [miss / 2, 1 - miss / 2])
    return Interval(
        difference=difference,
        low=float(low),
        high=float(high),
        paired=paired,
        count=(int(first.size), int(second.size)),
        resamples=draws,
    )


def _blocks(size: int, rows: int, part: float, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Indices of `part` of `size` values for each row: blocks of neighbours with random starts, in a circle."""
    length, drawn = max(1, round(size ** (1 / 3))), max(1, math.ceil(part * size))
    starts = generator.integers(0, size, (rows, -(-drawn // length), 1))
    return ((starts + np.arange(length)) % size).reshape(rows, -1)[:, :drawn]
