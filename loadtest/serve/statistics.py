"""A run's figures from its records. Pure: the same records give the same figures, at any time.

Only the measured part counts. Latencies cover only ordinary clients, because cancelling or slow clients make their own
times. Throughput counts the tokens of all requests that arrived from the end of warm-up until the last start. So it
includes neither the filling nor the emptying of the server.

A wait that the client gave up (stalled, timeout, unfinished) counts with the time it lasted, as a lower bound. Without
it, the worst requests would improve the percentiles. Refused and broken-off requests are only in the outcomes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from ..client.ending import BY_CHOICE, FAILURES
from .quantiles import Spread, curve, spread
from .record import (
    Record,
    end_to_end,
    gaps,
    given_up,
    open_gap,
    time_per_output_token,
    time_to_first_token,
    time_to_first_token_once_started,
    tokens_per_piece,
)
from .slo import Slo, is_good

WINDOWS = 24  # equal parts of the measured time; their token counts are used to compare throughput


class Window(NamedTuple):
    """The measured time, in seconds after the run began."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class MetricValues(NamedTuple):
    """A metric's values in seconds: the known ones, and those with only a lower bound."""

    known: list[float]
    at_least: list[float]


class Latencies(Struct, frozen=True, kw_only=True):
    """Seconds. `ttft_started` and `e2e_started` exclude the time a request waited in the client."""

    ttft: Spread | None
    ttft_started: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    e2e_started: Spread | None


class Goodput(Struct, frozen=True, kw_only=True):
    good: int
    judged: int  # ordinary clients' requests
    share: float
    requests_per_second: float


class Group(Struct, frozen=True, kw_only=True):
    """A group of requests: those of a tenant, a priority or a behaviour."""

    name: str
    requests: int
    failures: int
    output_tokens: int
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None


class Summary(Struct, frozen=True, kw_only=True):
    seconds: float  # measured
    requests: int
    outcomes: dict[str, int]
    failures: int
    examples: dict[str, str]  # first error message of each failure class
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int  # of all measured requests, to their ends
    requests_per_second: float  # successful ends within the window
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    pieces: int
    tokens_are_counted: bool  # by the server; else each piece counts as one token
    latencies: Latencies
    goodput: Goodput | None
    tenants: tuple[Group, ...]
    priorities: tuple[Group, ...]
    behaviours: tuple[Group, ...]


def summarise(records: Sequence[Record], window: Window, slo: Slo) -> Summary:
    measured = [record for record in records if record.phase == "measured"]
    failed = [record for record in measured if record.outcome not in BY_CHOICE]
    ended = [record for record in records if record.outcome in BY_CHOICE and window.begin <= record.ended < window.end]
    seconds = window.seconds
    outcomes = Counter(record.outcome for record in measured)
    begun = [record for record in measured if record.arrivals]
    return Summary(
        seconds=seconds,
        requests=len(measured),
        outcomes={str(name): count for name, count in outcomes.most_common()},
        failures=len(failed),
        examples={
            name: next(record.detail for record in failed if record.outcome == name)
            for name in FAILURES
            if outcomes[name]
        },
        prompt_tokens=sum(record.prompt_tokens or 0 for record in measured),
        cached_tokens=sum(record.cached_tokens or 0 for record in measured),
        output_tokens=sum(record.output_tokens for record in measured),
        requests_per_second=len(ended) / seconds if seconds else 0.0,
        output_tokens_per_second=sum(tokens_in_windows(records, window)) / seconds if seconds else 0.0,
        prompt_tokens_per_second=sum(record.prompt_tokens or 0 for record in ended) / seconds if seconds else 0.0,
        pieces=sum(len(record.arrivals) for record in measured),
        tokens_are_counted=all(record.output_tokens_told for record in begun if record.outcome == "ok"),
        latencies=latencies(measured),
        goodput=_goodput(measured, slo, seconds),
        tenants=_groups((record.tenant, record) for record in measured),
        priorities=_groups((str(record.priority), record) for record in measured if record.priority is not None),
        behaviours=_groups((record.behaviour, record) for record in measured),
    )


def judged(records: Iterable[Record]) -> list[Record]:
    """The measured requests whose times and ends depend on the server."""
    return [
        record
        for record in records
        if record.behaviour == "ordinary" and record.phase == "measured" and record.outcome != "cancelled"
    ]


def latencies(measured: Iterable[Record]) -> Latencies:
    values = metric_values(measured)
    return Latencies(**{name: spread(*values[name]) for name in Latencies.__struct_fields__})


def metric_values(measured: Iterable[Record]) -> dict[str, MetricValues]:
    """Every metric's values. Time per token uses complete answers only; the others include given-up waits."""
    ordinary = judged(measured)
    whole = [record for record in ordinary if record.outcome == "ok"]
    left = [record for record in ordinary if given_up(record)]
    return {
        "ttft": first_tokens(ordinary),
        "ttft_started": _first_tokens(ordinary, time_to_first_token_once_started),
        "itl": MetricValues([gap for record in ordinary for gap in gaps(record)], _present(map(open_gap, left))),
        "tpot": MetricValues(_present(map(time_per_output_token, whole)), []),
        "e2e": ends(ordinary),
        "e2e_started": MetricValues(
            [record.ended - record.started for record in whole], [record.ended - record.started for record in left]
        ),
    }


def first_tokens(records: Sequence[Record]) -> MetricValues:
    return _first_tokens(records, time_to_first_token)


def _first_tokens(records: Sequence[Record], time: Callable[[Record], float | None]) -> MetricValues:
    return MetricValues(
        _present(time(record) for record in records if record.arrivals),
        _present(time(record) for record in records if not record.arrivals),
    )


def ends(records: Sequence[Record]) -> MetricValues:
    return MetricValues(
        [end_to_end(record) for record in records if record.outcome == "ok"],
        [end_to_end(record) for record in records if given_up(record)],
    )


def curves(measured: Iterable[Record]) -> dict[str, list[float]]:
    return {name: curve([*known, *at_least]) for name, (known, at_least) in metric_values(measured).items()}


def tokens_in_windows(records: Iterable[Record], window: Window, parts: int = WINDOWS) -> list[float]:
    """Tokens that arrived in each equal part of the window."""
    found = [0.0] * parts
    scale = parts / window.seconds if window.seconds else 0.0
    for record in records:
        for time, tokens in zip(record.arrivals, tokens_per_piece(record), strict=True):
            if window.begin <= time < window.end:
                found[min(parts - 1, int((time - window.begin) * scale))] += tokens
    return found


def _goodput(measured: Sequence[Record], slo: Slo, seconds: float) -> Goodput | None:
    ordinary = judged(measured)
    if slo == Slo() or not ordinary:
        return None
    good = sum(is_good(record, slo) for record in ordinary)
    rate = good / seconds if seconds else 0.0
    return Goodput(good=good, judged=len(ordinary), share=good / len(ordinary), requests_per_second=rate)


def _groups(named: Iterable[tuple[str, Record]]) -> tuple[Group, ...]:
    """Latencies of a group cover all its clients, slow ones too, because the group is labelled."""
    groups: dict[str, list[Record]] = {}
    for name, record in named:
        groups.setdefault(name, []).append(record)
    return tuple(
        Group(
            name=name,
            requests=len(members),
            failures=sum(member.outcome not in BY_CHOICE for member in members),
            output_tokens=sum(member.output_tokens for member in members),
            ttft=spread(*first_tokens(members)),
            tpot=spread(_present(time_per_output_token(member) for member in members)),
            e2e=spread(*ends(members)),
        )
        for name, members in sorted(groups.items())
    )


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
