"""What the suite found, for people and for programs: a table, results.json, a picture. rich is optional."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from triolet.loadtest.device.gpu_case import Figures, Finding, Goal, GpuMachine

COLUMNS = ("case", "status", "figures", "goal", "s", "note")
COLOURS = {"right": "green", "target": "green", "floor": "yellow", "missed": "red", "wrong": "bold red",
           "failed": "bold red", "crashed": "bold red", "skipped": "dim"}  # fmt: skip
# What needs a look stands at the end of the table: of a long output, often only the end is shown.
LAST = {"missed": 1, "failed": 2, "crashed": 2, "wrong": 3}
LONG = 90  # characters: longer texts (lines to paste) stand above the table
TIMELINE = ("kernel", "count", "us", "gap_us")  # of the figure with this name; what was not timed has no microseconds
TIMELINE_ROWS, KERNEL_NAME = 20, 70  # shown, and characters; timelines.json has all


def write_report(folder: Path, machine: GpuMachine, findings: list[Finding]) -> None:
    in_order, findings = findings, sorted(findings, key=lambda finding: LAST.get(finding.status, 0))
    result = {
        "machine": machine.name,
        "capability": machine.capability,
        "versions": machine.versions,
        "limits": machine.limits,
        "cases": [finding.as_json() for finding in in_order],
    }
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    if timelines := {one.name: one.figures["timeline"] for one in in_order if "timeline" in one.figures}:
        (folder / "timelines.json").write_text(json.dumps(timelines, indent=1) + "\n")
    rows = [row_of(finding) for finding in findings]
    more = "".join(f"{text}\n" for text in (*map(timeline_table, timelines, timelines.values()), *long_lines(findings)))
    text = f"{more}\n{plain_table([COLUMNS, *rows])}\n"
    (folder / "table.txt").write_text(f"{machine.name}, {machine.versions}\n\n{text}")
    if not print_rich(machine, rows, more):
        print(text)
    (folder / "goals.svg").write_text(goals_svg(in_order))


def row_of(finding: Finding) -> tuple[str, ...]:
    return (
        finding.name,
        finding.status,
        figures_text(finding.figures),
        goal_text(finding.goal),
        f"{finding.seconds:.1f}",
        finding.note.splitlines()[0][:LONG] if finding.note else "",
    )


def figures_text(figures: Figures) -> str:
    return " ".join(f"{name} {shown(value)}" for name, value in short(figures).items())


def short(figures: Figures) -> Figures:
    return {
        name: value
        for name, value in figures.items()
        if not isinstance(value, list) and not (isinstance(value, str) and len(value) > LONG)
    }


def long_lines(findings: list[Finding]) -> list[str]:
    """Launch rows to paste, and other texts too long for a table."""
    return [
        f"{finding.name}, {name}:\n    {value}"
        for finding in findings
        for name, value in finding.figures.items()
        if name not in short(finding.figures) and isinstance(value, str)
    ]


def timeline_table(case: str, timeline: list[dict[str, Any]]) -> str:  # Any: JSON values
    """The kernels that take longest."""
    lines = [
        (row["kernel"][:KERNEL_NAME], *(shown(row[name]) if name in row else "-" for name in TIMELINE[1:]))
        for row in timeline[:TIMELINE_ROWS]
    ]
    return f"{case}, the first {len(lines)} of {len(timeline)} kernels:\n{plain_table([TIMELINE, *lines])}\n"


def shown(value: Any) -> str:  # Any: a JSON value
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def goal_text(goal: Goal | None) -> str:
    if goal is None:
        return ""
    return f"{goal.figure} {'<' if goal.less else '>'}= {goal.floor:g}, {goal.target:g}"


def plain_table(lines: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def print_rich(machine: GpuMachine, rows: list[tuple[str, ...]], above: str) -> bool:
    """False where rich is not installed."""
    try:
        from rich.console import Console

        from triolet.loadtest.table import terminal_table
    except ImportError:
        return False
    title = f"{machine.name}, {machine.versions}"
    styles = [COLOURS.get(row[1], "") for row in rows]
    table = terminal_table((COLUMNS, *rows), title=title, left=range(len(COLUMNS)), fold=True, styles=styles)
    console = Console(width=200)
    console.print(above, markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    return True


def goals_svg(findings: list[Finding]) -> str:
    """A bar for each case with a goal: the share of its target that was reached, and a line at the target."""
    width, row, left, unit = 900, 20, 420, 300  # pixels; `unit` is the target's
    parts: list[str] = []
    judged = [finding for finding in findings if finding.goal is not None and finding.goal.figure in finding.figures]
    for place, finding in enumerate(judged):
        goal, top = finding.goal, row * place + 8
        assert goal is not None
        value = float(finding.figures[goal.figure])
        share = goal.target / value if goal.less and value else value / goal.target
        end = left + unit * min(share, 1.25)
        colour = {"target": "seagreen", "floor": "goldenrod"}.get(finding.status, "firebrick")
        parts += [
            f'<text x="8" y="{top + 13}">{escape(finding.name.partition("/")[2])}</text>',
            f'<rect x="{left}" y="{top}" width="{end - left:.1f}" height="{row - 4}" fill="{colour}"/>',
            f'<text x="{end + 6:.1f}" y="{top + 13}">{share:.0%}</text>',
        ]
    height = row * len(judged) + 12
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-size="12">'
    target = f'<path stroke="black" d="M{left + unit} 4V{height - 4}"/>'
    return "\n".join([start, '<rect width="100%" height="100%" fill="white"/>', *parts, target, "</svg>"]) + "\n"
