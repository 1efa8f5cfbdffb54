"""A service level objective such as `ttft=500ms,itl=50ms`. A request is good if it met every limit.

`ttft` time to first token · `itl` inter-token latency, met by 99 % of the request's gaps · `tpot` mean time per output
token after the first · `e2e` the whole request. Times are from the intended start.
"""

import re
from typing import Final

from msgspec import Struct

from .record import Record, end_to_end, gaps, time_per_output_token, time_to_first_token

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


class Slo(Struct, frozen=True, kw_only=True):
    """Limits in seconds; None means no limit."""

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None


class BadSlo(ValueError):
    """The text is not an objective; the message shows what to write."""


def read_seconds(text: str) -> float:
    """`250ms`, `1.5s` or a bare number of seconds. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is no time; write it as 500ms or 2s")
    return float(match[1]) * _UNITS[match[2]]


def read_slo(text: str) -> Slo:
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in Slo.__struct_fields__ or not equals or name in limits:
            known = ", ".join(Slo.__struct_fields__)
            raise BadSlo(f"{part!r} is not one limit of {known}, as in ttft=500ms,itl=50ms")
        try:
            limits[name] = read_seconds(value)
        except ValueError as error:
            raise BadSlo(str(error)) from error
    return Slo(**limits)


def is_good(record: Record, slo: Slo) -> bool:
    """Whether an answer was complete and within every limit. Metrics that need two tokens count as met for one."""
    if record.outcome != "ok":
        return False
    found = {
        "ttft": time_to_first_token(record),
        "itl": _most_gaps(record),
        "tpot": time_per_output_token(record),
        "e2e": end_to_end(record),
    }
    limits: dict[str, float | None] = {name: getattr(slo, name) for name in found}
    return all(limit is None or (value := found[name]) is None or value <= limit for name, limit in limits.items())


def _most_gaps(record: Record) -> float | None:
    ordered = sorted(gaps(record))
    return ordered[-(-99 * len(ordered) // 100) - 1] if ordered else None
