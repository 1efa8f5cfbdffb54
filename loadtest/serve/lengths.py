"""Distributions of lengths and pauses, parsed from text: `128`, `uniform:32-256`, `lognormal:200,0.8`, `file:n.txt`.

Pure, except that it reads the file of values once. `lognormal:M,S` has median M; S is the standard deviation of the
logarithm: 0.5 is a mild spread, 1.0 a long tail. Drawn lengths are at least 1.
"""

import math
from pathlib import Path
from random import Random

from msgspec import Struct


class Fixed(Struct, frozen=True, tag="fixed"):
    value: float


class Uniform(Struct, frozen=True, tag="uniform"):
    """Each value from `low` to `high`, inclusive, equally often."""

    low: float
    high: float


class Lognormal(Struct, frozen=True, tag="lognormal"):
    median: float
    sigma: float


class FileValues(Struct, frozen=True, tag="file"):
    """Each number in a file (one per line), equally often."""

    path: str
    values: tuple[float, ...]


Distribution = Fixed | Uniform | Lognormal | FileValues

SHAPES = "write a number, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA or file:PATH"


class BadDistribution(ValueError):
    """The text is not a distribution; the message shows what to write."""


def read_distribution(text: str) -> Distribution:
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        return Fixed(_number(text, text))
    match kind:
        case "fixed":
            return Fixed(_number(rest, text))
        case "uniform":
            low, high = _pair(rest, "-", text)
            if high < low:
                raise BadDistribution(f"{text!r}: {high:g} is below {low:g}")
            return Uniform(low, high)
        case "lognormal":
            median, sigma = _pair(rest, ",", text)
            if median <= 0:
                raise BadDistribution(f"{text!r}: the median must be above 0")
            return Lognormal(median, sigma)
        case "file":
            return _values(rest)
        case _:
            raise BadDistribution(f"{text!r} is no distribution; {SHAPES}")


def draw_length(distribution: Distribution, draw: Random) -> int:
    """A whole number, 1 or more."""
    if isinstance(distribution, Uniform):
        return max(1, draw.randint(math.ceil(distribution.low), math.floor(distribution.high)))
    return max(1, round(draw_value(distribution, draw)))


def draw_value(distribution: Distribution, draw: Random) -> float:
    match distribution:
        case Fixed(value=value):
            return value
        case Uniform(low=low, high=high):
            return draw.uniform(low, high)
        case Lognormal(median=median, sigma=sigma):
            return draw.lognormvariate(math.log(median), sigma)
        case FileValues(values=values):
            return draw.choice(values)


def describe(distribution: Distribution) -> str:
    match distribution:
        case Fixed(value=value):
            return f"{value:g}"
        case Uniform(low=low, high=high):
            return f"uniform {low:g}–{high:g}"
        case Lognormal(median=median, sigma=sigma):
            return f"lognormal, median {median:g}, σ {sigma:g}"
        case FileValues(path=path, values=values):
            return f"{len(values)} values of {path}"


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadDistribution(f"{whole!r} is no distribution; {SHAPES}") from None
    if not math.isfinite(value) or value < 0:
        raise BadDistribution(f"{whole!r}: {text} must be 0 or more")
    return value


def _pair(text: str, separator: str, whole: str) -> tuple[float, float]:
    first, found, second = text.partition(separator)
    if not found:
        raise BadDistribution(f"{whole!r} needs two numbers; {SHAPES}")
    return _number(first, whole), _number(second, whole)


def _values(path: str) -> FileValues:
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadDistribution(f"file:{path}: {error}") from error
    values = tuple(_number(line, f"{path}: {line}") for line in lines if line and not line.startswith("#"))
    if not values:
        raise BadDistribution(f"file:{path} holds no number")
    return FileValues(path, values)
