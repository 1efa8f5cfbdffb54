"""What the suite found, for people and for programs: a table, results.json, plots. rich and matplotlib are optional."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from triolet.loadtest.device.gpu_case import Figures, Finding, Goal, GpuMachine

COLUMNS = ("case", "status", "figures", "goal", "s", "note")
COLOURS = {"right": "green", "target": "green", "floor": "yellow", "missed": "red", "wrong": "bold red",
           "failed": "bold red", "crashed": "bold red", "skipped": "dim"}  # fmt: skip
LONG = 90  # characters: longer texts (lines to paste) stand under the table


def write_report(folder: Path, machine: GpuMachine, findings: list[Finding]) -> None:
    result = {
        "machine": machine.name,
        "capability": machine.capability,
        "versions": machine.versions,
        "limits": machine.limits,
        "cases": [finding.as_json() for finding in findings],
    }
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    rows = [row_of(finding) for finding in findings]
    text = plain_table(rows) + "\n" + "".join(f"{line}\n" for line in long_lines(findings))
    (folder / "table.txt").write_text(f"{machine.name}, {machine.versions}\n\n{text}")
    if not print_rich(machine, rows, findings):
        print(text)
    print(write_plots(folder, findings))


def row_of(finding: Finding) -> tuple[str, ...]:
    return (
        finding.name,
        finding.status,
        " ".join(f"{name} {shown(value)}" for name, value in short(finding.figures).items()),
        goal_text(finding.goal),
        f"{finding.seconds:.1f}",
        finding.note.splitlines()[0][:LONG] if finding.note else "",
    )


def short(figures: Figures) -> Figures:
    return {name: value for name, value in figures.items() if not (isinstance(value, str) and len(value) > LONG)}


def long_lines(findings: list[Finding]) -> list[str]:
    """Launch rows to paste, and other texts too long for a table."""
    return [
        f"{finding.name}, {name}:\n    {value}"
        for finding in findings
        for name, value in finding.figures.items()
        if name not in short(finding.figures)
    ]


def shown(value: Any) -> str:  # Any: a JSON value
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def goal_text(goal: Goal | None) -> str:
    if goal is None:
        return ""
    return f"{goal.figure} {'<' if goal.less else '>'}= {goal.floor:g}, {goal.target:g}"


def plain_table(rows: list[tuple[str, ...]]) -> str:
    lines = [COLUMNS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def print_rich(machine: GpuMachine, rows: list[tuple[str, ...]], findings: list[Finding]) -> bool:
    """False where rich is not installed."""
    try:
        from rich.console import Console
        from rich.markup import escape

        from triolet.loadtest.table import terminal_table
    except ImportError:
        return False
    title = f"{machine.name}, {machine.versions}"
    styles = [COLOURS.get(row[1], "") for row in rows]
    table = terminal_table((COLUMNS, *rows), title=title, left=range(len(COLUMNS)), fold=True, styles=styles)
    console = Console(width=200)
    console.print(table)
    for line in long_lines(findings):
        console.print(escape(line), soft_wrap=True)
    return True


def write_plots(folder: Path, findings: list[Finding]) -> str:
    """Goals reached, and the 4-bit GEMM by rows; says what was done."""
    try:
        import_module("matplotlib").use("agg")
        pyplot: Any = import_module("matplotlib.pyplot")  # Any: optional, so no checker may count on it
    except ImportError:
        return "no plots: matplotlib is not installed"
    judged = [finding for finding in findings if finding.goal is not None and finding.goal.figure in finding.figures]
    if not judged:
        return "no plots: nothing with a goal was measured"
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.3 * len(judged)))
    for place, finding in enumerate(reversed(judged)):
        goal = finding.goal
        assert goal is not None
        value = float(finding.figures[goal.figure])
        ratio = goal.target / value if goal.less and value else value / goal.target
        axes.barh(place, ratio, color={"target": "tab:green", "floor": "tab:olive"}.get(finding.status, "tab:red"))
    axes.set_yticks(range(len(judged)), [finding.name.partition("/")[2] for finding in reversed(judged)], fontsize=7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("share of the target reached")
    figure.tight_layout()
    figure.savefig(folder / "goals.png", dpi=120)
    pyplot.close(figure)
    return f"plot: {folder / 'goals.png'}"
