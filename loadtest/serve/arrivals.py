"""When an open loop's requests are meant to start: seconds from the run's beginning, ascending. Pure.

An arrival process knows nothing about the server. That makes the loop open: a server that falls behind still gets every
planned request, and latency counts from the planned start.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

Rate = Annotated[float, Meta(gt=0)]  # requests a second


class Constant(Struct, frozen=True, tag="constant"):
    """One request every 1/rate seconds."""

    rate: Rate


class Gamma(Struct, frozen=True, tag="gamma"):
    """Gaps of mean 1/rate from a gamma distribution of shape `burstiness`.

    1 is a Poisson process, below 1 requests come in bursts, above 1 they are more even than random.
    """

    rate: Rate
    burstiness: Annotated[float, Meta(gt=0)] = 1.0


class Ramp(Struct, frozen=True, tag="ramp"):
    """A Poisson process whose rate changes linearly from `start` to `end` over `seconds`, then stops."""

    start: Annotated[float, Meta(ge=0)]
    end: Annotated[float, Meta(ge=0)]
    seconds: Annotated[float, Meta(gt=0)]


class Recorded(Struct, frozen=True, tag="trace"):
    """The times of a recorded trace, each multiplied by `time_scale`: 0.5 replays it twice as fast."""

    path: str
    time_scale: Annotated[float, Meta(gt=0)] = 1.0


Arrivals = Constant | Gamma | Ramp | Recorded


def start_times(arrivals: Arrivals, seed: int, recorded: Sequence[float] = ()) -> Iterator[float]:
    """The intended starts; endless for a constant rate or gamma gaps. `recorded` holds the times of a trace."""
    draw = Random(f"arrivals {seed}")
    match arrivals:
        case Constant(rate=rate):
            return (number / rate for number in count())
        case Gamma(rate=rate, burstiness=shape):
            return _sums(draw.gammavariate(shape, 1 / (shape * rate)) for _ in count())
        case Ramp():
            return _ramp(arrivals, draw)
        case Recorded(time_scale=scale):
            return (time * scale for time in recorded)


def _sums(gaps: Iterator[float]) -> Iterator[float]:
    total = 0.0
    for gap in gaps:
        total += gap
        yield total


def _ramp(ramp: Ramp, draw: Random) -> Iterator[float]:
    """Arrivals of a unit Poisson process, put where the integral of the rate reaches them."""
    slope = (ramp.end - ramp.start) / ramp.seconds
    expected = (ramp.start + ramp.end) / 2 * ramp.seconds
    for reached in _sums(draw.expovariate(1.0) for _ in count()):
        if reached >= expected:
            return
        # Solves start·t + slope·t²/2 = reached, in the form that also works for a slope of 0.
        root = max(0.0, ramp.start**2 + 2 * slope * reached) ** 0.5
        yield 2 * reached / (ramp.start + root)
