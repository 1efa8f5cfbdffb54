"""How sure a difference between two runs is: block bootstrap over requests. Pure, and the same for the same seed.

Neighbouring requests meet the same queue, so they are drawn in blocks of neighbours (about n^(1/3) of them, in a
circle); drawing them one by one would make intervals too narrow. Where both runs asked the same, request by request,
they are drawn in pairs, and what the lengths of the answers do to a latency cancels out.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

RESAMPLES: Final = 4000
FEWEST_RESAMPLES: Final = 1000
MOST_NUMBERS: Final = 20_000_000  # drawn per metric and side; beyond it there are fewer resamples, chunk by chunk
CHUNK_NUMBERS: Final = 2_000_000

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # over the last axis


class Interval(Struct, frozen=True, kw_only=True):
    """The relative difference of B from A: 0.05 is 5 % more."""

    difference: float
    low: float
    high: float
    paired: bool
    count: tuple[int, int]


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
    """The interval misses the true difference with probability `miss`. None without values, or where A has a 0.

    `paired`: a[i] and b[i] are of the same request.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.size < 2 or second.size < 2 or (paired and first.size != second.size):
        return None
    base = float(statistic(first))
    if base <= 0:
        return None
    generator = np.random.default_rng(seed)
    longest = max(first.size, second.size)
    differences: list[Floats] = []
    left = min(resamples, max(FEWEST_RESAMPLES, int(MOST_NUMBERS // longest)))
    while left > 0:
        rows = int(max(1, min(left, CHUNK_NUMBERS // longest)))
        places = _blocks(first.size, rows, generator)
        ours = statistic(first[places])
        theirs = statistic(second[places if paired else _blocks(second.size, rows, generator)])
        differences.append(np.divide(theirs, ours, out=np.ones_like(ours), where=ours > 0) - 1)
        left -= rows
    found = np.sort(np.concatenate(differences))
    low, high = np.quantile(found, [miss / 2, 1 - miss / 2])
    return Interval(
        difference=float(statistic(second)) / base - 1,
        low=float(low),
        high=float(high),
        paired=paired,
        count=(int(first.size), int(second.size)),
    )


def _blocks(size: int, rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Places of `size` values for each row: blocks of neighbours, beginning anywhere, in a circle."""
    length = max(1, round(size ** (1 / 3)))
    starts = generator.integers(0, size, (rows, -(-size // length), 1))
    return ((starts + np.arange(length)) % size).reshape(rows, -1)[:, :size]
