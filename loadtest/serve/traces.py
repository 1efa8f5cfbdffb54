"""Recorded traffic in two public formats: when each request came, and the length of its prompt and answer.

- Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, times as `2023-11-16 18:15:46.6805900`.
- BurstGPT: `Timestamp,Model,Request tokens,Response tokens,…`, times in seconds. Failed requests have an
  answer of 0 tokens; they are skipped and counted.
"""

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct


class TracedRequest(Struct, frozen=True):
    time: float  # seconds after the trace's first request
    prompt_tokens: int
    output_tokens: int


class Trace(Struct, frozen=True, kw_only=True):
    path: str
    layout: str
    requests: tuple[TracedRequest, ...]
    left_out: int  # rows without an answer


class BadTrace(ValueError):
    """The file is not a trace; the message names file, line and remedy."""


_LAYOUTS: Final = {
    "Azure": ("timestamp", "contexttokens", "generatedtokens"),
    "BurstGPT": ("timestamp", "request tokens", "response tokens"),
}


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The file's requests in order of time, at most the first `limit`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return parse_trace(file, str(path), limit)
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {error}") from error


def parse_trace(lines: Iterable[str], name: str, limit: int | None = None) -> Trace:
    rows = csv.reader(lines)
    header = [column.strip().lower() for column in next(rows, list[str]())]
    layout = next((key for key, columns in _LAYOUTS.items() if all(column in header for column in columns)), None)
    if layout is None:
        known = " or ".join(", ".join(columns) for columns in _LAYOUTS.values())
        raise BadTrace(f"{name}: line 1 must name the columns {known}; it names {', '.join(header) or 'none'}")
    places = [header.index(column) for column in _LAYOUTS[layout]]
    found: list[tuple[float, int, int]] = []
    left_out = 0
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        try:
            time, prompt, output = (row[place].strip() for place in places)
            entry = (_seconds(time), int(float(prompt)), int(float(output)))
        except (ValueError, IndexError):
            raise BadTrace(f"{name}: line {number} is not a time and two token counts: {','.join(row)}") from None
        if entry[1] < 1 or entry[2] < 1:
            left_out += 1
        else:
            found.append(entry)
    found.sort()
    if not found:
        raise BadTrace(f"{name} holds no request")
    begin = found[0][0]
    requests = tuple(TracedRequest(time - begin, prompt, output) for time, prompt, output in found[:limit])
    return Trace(path=name, layout=layout, requests=requests, left_out=left_out)


def _seconds(text: str) -> float:
    """A number of seconds, or a date and time; fractions of a second may have any number of digits."""
    try:
        return float(text)
    except ValueError:
        pass
    whole, _, fraction = text.partition(".")
    digits = fraction.rstrip("Z").partition("+")[0]
    moment = datetime.fromisoformat(whole.rstrip("Z").partition("+")[0]).replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)
