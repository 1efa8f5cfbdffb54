"""A run's result in one JSON file: settings, figures, and the data needed for plots and comparisons.

The records are beside it in `NAME.jsonl`, one JSON object per line. The result does not need them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..client.ending import FAILURES
from .lag import ClientLoad, LagMeter
from .record import Record, end_to_end, gaps, given_up, open_gap, time_per_output_token, time_to_first_token
from .settings import LoadSettings, without_keys
from .slo import is_good
from .statistics import Summary, Window, curves, judged, summarise, tokens_in_windows
from .words import TokensPerWord

FORMAT: Final = "triolet bench serve 1"
MOST_POINTS: Final = 150  # in a series over time


class RequestSample(Struct, frozen=True, array_like=True):
    """A judged request, for comparing runs; None if it has no such time."""

    conversation: int
    turn: int
    started: float
    ok: bool
    good: bool
    ttft: float | None
    itl: float | None  # mean of its gaps
    tpot: float | None
    e2e: float | None
    output_tokens: int
    given_up: bool = False  # by the client: the times are lower bounds, and none covers the whole answer

    def is_bound(self, key: str) -> bool:
        """Whether a time is only a lower bound; for the first token, if none came."""
        return self.given_up and (key in ("itl", "e2e") or (key == "ttft" and self.itl is None))


class Series(Struct, frozen=True, kw_only=True):
    """The whole run over time, warm-up included, in equal steps of `step` seconds."""

    step: float
    tokens_per_second: list[float]
    in_flight: list[int]
    failures: list[int]
    lag: list[float]  # the client's longest lag in the step


class Result(Struct, frozen=True, kw_only=True):
    format: Literal["triolet bench serve 1"] = FORMAT
    name: str
    date: str
    command: str
    settings: LoadSettings
    model: str
    server: str | None  # its name in the response headers
    versions: dict[str, str]
    machine: dict[str, str]
    words: TokensPerWord
    window: tuple[float, float]
    unwarmed: float = 0.0  # seconds of a warm-up that counts, since no request began after it
    summary: Summary
    client: ClientLoad
    series: Series
    curves: dict[str, list[float]]
    windows: list[float]  # tokens in equal parts of the measured time
    samples: list[RequestSample]


class BadResult(ValueError):
    """The file is not a result of `triolet bench serve`."""


class Conditions(Struct, frozen=True, kw_only=True):
    """What a result holds besides its figures."""

    name: str
    date: str
    command: str
    model: str
    server: str | None
    versions: dict[str, str]
    machine: dict[str, str]
    words: TokensPerWord


def make_result(
    records: Sequence[Record], window: Window, client: ClientLoad, series: Series, settings: LoadSettings,
    conditions: Conditions, unwarmed: float = 0.0,
) -> Result:  # fmt: skip
    return Result(
        **{name: getattr(conditions, name) for name in Conditions.__struct_fields__},
        settings=without_keys(settings),
        unwarmed=unwarmed,
        window=(window.begin, window.end),
        summary=summarise(records, window, settings.slo),
        client=client,
        series=series,
        curves=curves(records),
        windows=tokens_in_windows(records, window),
        samples=[
            sample_of(record, good=is_good(record, settings.slo))
            for record in sorted(judged(records), key=lambda record: record.intended)
        ],
    )


def sample_of(record: Record, *, good: bool) -> RequestSample:
    waits, last = gaps(record), open_gap(record)
    if last is not None:
        waits.append(last)
    whole = record.outcome == "ok"
    return RequestSample(
        conversation=record.conversation,
        turn=record.turn,
        started=record.started,
        ok=whole,
        good=good,
        ttft=time_to_first_token(record),
        itl=sum(waits) / len(waits) if waits else None,
        tpot=time_per_output_token(record) if whole else None,
        e2e=end_to_end(record) if whole or given_up(record) else None,
        output_tokens=record.output_tokens,
        given_up=given_up(record),
    )


def make_series(records: Sequence[Record], meter: LagMeter, origin: float, end: float) -> Series:
    step = max(0.1, end / MOST_POINTS)
    steps = int(end / step) + 1
    tokens = tokens_in_windows(records, Window(0.0, steps * step), steps)
    changes, failures, lag = [0] * (steps + 1), [0] * steps, [0.0] * steps
    for record in records:
        first, last = int(record.started / step), min(steps - 1, int(record.ended / step))
        changes[min(steps, first)] += 1
        changes[last + 1] -= 1
        failures[last] += record.outcome in FAILURES
    for time, late in zip(meter.times, meter.lags, strict=True):
        place = int((time - origin) / step)
        if 0 <= place < steps:
            lag[place] = max(lag[place], late)
    in_flight: list[int] = []
    running = 0
    for change in changes[:steps]:
        running += change
        in_flight.append(running)
    return Series(
        step=step, tokens_per_second=[count / step for count in tokens], in_flight=in_flight, failures=failures, lag=lag
    )


def read_result(path: Path) -> Result:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise BadResult(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadResult(f"{path} is no result of `triolet bench serve`: {error}") from error


def write_result(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(result) + b"\n")
