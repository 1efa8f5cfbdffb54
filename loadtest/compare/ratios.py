"""From the turns of `triolet bench peers` to medians and ratios. Pure.

Engines take turns on one machine, whose memory and cores may be shared with others. So only values of the same turn are
divided, and a ratio is the median of the turns' ratios. Ours is compared with that turn's best peer among those with
as many bits per weight or fewer.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct


class Measured(Struct, frozen=True, kw_only=True):
    """One engine's value of one case in one turn, in tokens/s."""

    turn: int
    engine: str
    ours: bool
    bits: int  # of a weight
    case: str
    value: float
    repeats: tuple[float, ...] = ()  # of which `value` is the median
    busy: float = 0.0  # share of the machine's cores that others used just before


class Median(Struct, frozen=True, kw_only=True):
    engine: str
    case: str
    median: float
    lowest: float
    highest: float


class Ratio(Struct, frozen=True, kw_only=True):
    """Ours divided by theirs: median and range of the turns. The names are the most frequent ones."""

    case: str
    ours: str
    theirs: str
    median: float
    lowest: float
    highest: float
    turns: tuple[float, ...]


def medians(rows: Iterable[Measured]) -> list[Median]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row.engine, row.case), []).append(row.value)
    return [
        Median(engine=engine, case=case, median=statistics.median(values), lowest=min(values), highest=max(values))
        for (engine, case), values in groups.items()
    ]


def reading_shares(rows: Iterable[Measured], token_bytes: Mapping[str, float], speeds: Sequence[float]) -> list[Median]:
    """How much of the speed of reading memory decoding reaches: bytes of a token times tokens/s, over the turn's."""
    return medians(
        msgspec.structs.replace(row, value=row.value * token_bytes[row.engine] / speeds[row.turn])
        for row in rows
        if row.engine in token_bytes
    )


def against_best(rows: Sequence[Measured]) -> list[Ratio]:
    """Each of our variants against the best peer of equal or fewer bits, if there is one."""
    ours = list(dict.fromkeys((row.engine, row.bits) for row in rows if row.ours))
    found: list[Ratio] = []
    for name, bits in ours:
        theirs = [row for row in rows if not row.ours and row.bits <= bits]
        found += _ratios([row for row in rows if row.engine == name and row.ours], theirs)
    return found


def against_each(rows: Sequence[Measured]) -> list[Ratio]:
    """Each of our variants against every peer of the same bits."""
    found: list[Ratio] = []
    for name, bits in dict.fromkeys((row.engine, row.bits) for row in rows if row.ours):
        for peer in dict.fromkeys(row.engine for row in rows if not row.ours and row.bits == bits):
            theirs = [row for row in rows if not row.ours and row.engine == peer]
            found += _ratios([row for row in rows if row.ours and row.engine == name], theirs)
    return found


def best_against_best(rows: Sequence[Measured]) -> list[Ratio]:
    """Our best variant of a turn against the best of all peers."""
    return _ratios([row for row in rows if row.ours], [row for row in rows if not row.ours])


def _ratios(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[Ratio]:
    """Per case, our best divided by their best in each turn that has both."""
    found: list[Ratio] = []
    for case in dict.fromkeys(row.case for row in ours):
        pairs: list[tuple[Measured, Measured]] = []
        for turn in sorted({row.turn for row in ours}):
            mine = [row for row in ours if (row.case, row.turn) == (case, turn)]
            others = [row for row in theirs if (row.case, row.turn) == (case, turn)]
            if mine and others:
                pairs.append((max(mine, key=_value), max(others, key=_value)))
        if not pairs:
            continue
        turns = tuple(mine.value / other.value for mine, other in pairs)
        found.append(
            Ratio(
                case=case,
                ours=Counter(mine.engine for mine, _ in pairs).most_common(1)[0][0],
                theirs=Counter(other.engine for _, other in pairs).most_common(1)[0][0],
                median=statistics.median(turns),
                lowest=min(turns),
                highest=max(turns),
                turns=turns,
            )
        )
    return found


def _value(row: Measured) -> float:
    return row.value
