"""Shows two results of `triolet bench serve` on a terminal: their differences and how certain they are."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..table import terminal_table
from .compare import Difference, Verdict
from .text_report import milliseconds

STYLES = {"worse": "red", "better": "green", "same": "", "unsure": "dim"}


def show_verdict(verdict: Verdict, a: Path, b: Path, console: Console) -> None:
    rows = [("", "A", "B", "difference", "interval", "")]
    for each in verdict.differences:
        interval = each.interval
        sure = f"{interval.low:+.1%} … {interval.high:+.1%}" if interval else "too few values"
        difference = f"{interval.difference:+.1%}" if interval else ""
        rows.append((each.title, _value(each, each.a), _value(each, each.b), difference, sure, each.call))
    styles = [STYLES[each.call] for each in verdict.differences]
    console.print(terminal_table(rows, title=f"A {a} · B {b}", left=(0, 5), styles=styles))
    for note in verdict.notes:
        console.print(Text(note))
    console.print(Text(f"Verdict: {verdict.text}.", style=f"bold {STYLES[verdict.call]}"))


def _value(difference: Difference, value: float) -> str:
    match difference.unit:
        case "s":
            return f"{milliseconds(value)} ms"
        case "share":
            return f"{value:.1%}"
        case unit:
            return f"{value:,.1f} {unit}"
