"""BehaviourReports side by side: one row per promise, one column per server."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rich.table import Table

from ..table import terminal_table
from .results import BehaviourReport, Drained, Isolation, Leaving, NotMeasurable, SlowReaders, WorkerDeath

_Part = TypeVar("_Part")
KIB: Final = 1024


def _seconds(value: float | None, none: str) -> str:
    if value is None:
        return none
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def _times(now: float | None, before: float | None) -> str:
    if now is None or before is None or not before:
        return _seconds(now, "no answer")
    return f"{_seconds(now, '')} ({now / before:.1f} × alone)"


def _cell(report: BehaviourReport, part: str, kind: type[_Part], say: Callable[[_Part], str]) -> str:
    result = report.results.get(part)
    if isinstance(result, NotMeasurable):
        return f"not measurable: {result.because}"
    return say(result) if isinstance(result, kind) else ""


def _death(death: WorkerDeath) -> str:
    return f"{death.went_on} of {death.streams} go on, {death.told} told, {death.cut} cut"


def _drained(drain: Drained) -> str:
    return f"{drain.finished} of {drain.streams} finish, {drain.told} told, {drain.cut} cut"


def _exit(drain: Drained) -> str:
    if drain.exit_seconds is None:
        return f"not within {drain.patience:g} s"
    return f"{_seconds(drain.exit_seconds, '')}, exit code {drain.exit_code}"


def _probes_beside(flooded: Isolation) -> str:
    whose = "its own key" if flooded.separate_keys else "the same key"
    failed = f", {flooded.probes_failed} not answered" if flooded.probes_failed else ""
    return f"{_times(flooded.first_token_flooded, flooded.first_token_alone)}, {whose}{failed}"


def _answers_beside(slow: SlowReaders) -> str:
    failed = f", {slow.probes_failed} of {slow.probes} not answered" if slow.probes_failed else ""
    return _times(slow.probe_seconds, slow.probe_alone_seconds) + failed


def rows(report: BehaviourReport) -> list[tuple[str, str]]:
    """One server's column."""
    tally = report.tally
    return [
        (
            "clients leave: the engine stops after",
            _cell(report, "leaving", Leaving, lambda part: _seconds(part.seconds, f"over {part.patience:g} s")),
        ),
        (
            "memory for each reader that does not read",
            _cell(report, "slow readers", SlowReaders, lambda part: f"{part.grown_bytes_each / KIB:,.0f} KiB"),
        ),
        (
            "… an answer beside them",
            _cell(report, "slow readers", SlowReaders, _answers_beside),
        ),
        ("flood by another: first token", _cell(report, "isolation", Isolation, _probes_beside)),
        (
            "… gap between tokens",
            _cell(report, "isolation", Isolation, lambda part: _times(part.gap_flooded, part.gap_alone)),
        ),
        ("model's process killed: streams", _cell(report, "worker death", WorkerDeath, _death)),
        (
            "… new answers after",
            _cell(
                report,
                "worker death",
                WorkerDeath,
                lambda part: _seconds(part.recovered_seconds, f"not within {part.patience:g} s"),
            ),
        ),
        ("SIGTERM: streams", _cell(report, "drain", Drained, _drained)),
        ("… gone after", _cell(report, "drain", Drained, _exit)),
        ("streams without a terminal event", f"{tally.without} of {tally.begun}"),
    ]


def table_of(reports: Sequence[BehaviourReport]) -> Table:
    table = [("", *(report.name for report in reports))]
    table += [(cells[0][0], *(text for _, text in cells)) for cells in zip(*map(rows, reports), strict=True)]
    return terminal_table(table, left=range(len(table[0])), fold=True)
