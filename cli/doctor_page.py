"""The page that `triolet doctor` prints of a report."""

import sys
from collections.abc import Iterable
from time import gmtime, strftime
from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..protocol.flight import DoctorReport, FlightEvent, FlightMinute, FlightRecording
from .diagnosis import problems, step_rows
from .values import format_size

_STEPS: Final = 12
_EVENTS: Final = 12
_MINUTES: Final = 5
_WIDTH: Final = 120  # columns, where the output is no terminal


def print_report(report: DoctorReport) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    recorded = report.health.status == "recorded"
    name = f"Triolet {report.version or '(a web process)'}"
    state = "recorded until" if recorded else f"{report.health.status} at"
    console.print(
        f"{name}, {state} {strftime('%Y-%m-%d %H:%M:%S', gmtime(report.wall))} UTC",
        soft_wrap=True,
    )
    found = problems(report)
    console.print("What looks wrong:" if found else "Nothing looks wrong.")
    for sentence in found:
        console.print(f"  - {escape(sentence)}", soft_wrap=True)
    for line in _facts(report):
        console.print(f"  {escape(line)}", soft_wrap=True)
    for name, recording in report.recordings.items():
        console.print(f"\n{escape(name)}", style="bold")
        _print_recording(console, recording)
        _print_tasks(console, "Where the scheduler's process is:", recording.tasks)
    _print_tasks(console, "Where it is:", report.tasks)


def _facts(report: DoctorReport) -> Iterable[str]:
    if (about := report.about) is not None:
        memory = about.memory
        yield f"model     {about.model}: {about.architecture}, {about.device}, {about.dtype}"
        sizes = map(format_size, (memory.weights_bytes, memory.workspace_bytes, memory.kv_bytes))
        yield "memory    weights {} · workspace {} · KV cache {}".format(*sizes) + f" · up for {about.uptime:.0f} s"
    if (ledger := report.ledger) is not None:
        blocks = ledger.kv_blocks
        yield f"ledger    KV blocks {blocks.free} free + {blocks.cached} cached + {blocks.owned} owned = {blocks.total}"
        yield (
            f"          {ledger.requests} requests · {ledger.tasks} tasks · {ledger.fds} files · {ledger.children} "
            f"children · {format_size(ledger.rss_bytes)}"
        )
    for name, figures in report.reports.items():
        scheduler = figures.scheduler
        yield (
            f"choices   {scheduler.running} running · {scheduler.parked} parked · {scheduler.waiting} waiting · "
            f"worker {figures.worker.pid}, {figures.worker.restarts} restarts  ({name})"
        )


def _print_recording(console: Console, recording: FlightRecording) -> None:
    now, records = recording.now, recording.records
    steps = _table(
        "step", "ago", "sequences", "tokens", "of prompts", "new", "preempted", "waiting", "why", "ms", "link ms"
    )
    for planned, answer in step_rows(records)[-_STEPS:]:
        why = f"{planned.blocked} {planned.need} of {planned.free}" if planned.need else planned.blocked
        took = ("", "") if answer is None else (f"{answer.duration * 1e3:.1f}", f"{answer.link * 1e3:.1f}")
        numbers = (planned.sequences, planned.tokens, planned.prefill_tokens, planned.new, planned.preempted)
        steps.add_row(str(planned.step), _ago(now, planned.at), *map(str, numbers), str(planned.waiting), why, *took)
    minutes = _table("minute until", "steps", "ms a step", "tokens")
    for minute in [record for record in records if isinstance(record, FlightMinute)][-_MINUTES:]:
        each = f"{minute.seconds / minute.steps * 1e3:.1f}"
        minutes.add_row(_ago(now, minute.at), str(minute.steps), each, str(minute.tokens))
    events = _table("ago", "event", "")
    for event in [record for record in records if isinstance(record, FlightEvent)][-_EVENTS:]:
        events.add_row(_ago(now, event.at), event.kind, escape(event.text))
    for table in (steps, minutes, events):
        if table.row_count:
            console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        words = column in ("why", "event", "")
        table.add_column(column, justify="left" if words else "right", no_wrap=bool(column))
    return table


def _ago(now: float, at: float) -> str:
    seconds = max(0.0, now - at)
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _print_tasks(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"\n{title}", style="bold")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
