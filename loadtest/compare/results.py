"""`triolet bench compare A.json B.json`: two results of `triolet bench serve`, their differences and how sure they are.

The exit code is 1 where B is worse and 3 where a run was bound by its client, so that a pipeline can stop there.
"""

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from ...cli.refusals import Refusal
from ..serve.compare import Difference, Verdict, compare
from ..serve.result import BadResult, read_result
from ..serve.text_report import milliseconds
from ..table import terminal_table

STYLES = {"worse": "red", "better": "green", "same": "", "unsure": "dim"}


def compare_results(a: Path, b: Path, *, tolerance: float, as_json: bool) -> None:
    try:
        verdict = compare(read_result(a), read_result(b), tolerance)
    except BadResult as error:
        raise Refusal(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode(verdict))
    else:
        show_verdict(verdict, a, b, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    if verdict.overloaded:
        raise SystemExit(3)
    if verdict.call == "worse":
        raise SystemExit(1)


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
