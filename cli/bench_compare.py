"""`triolet bench compare A.json B.json`: two results of `triolet bench serve`, their differences and how sure they are.

The exit code is 1 where B is worse and 3 where a run was bound by its client, so that a pipeline can stop there.
"""

import sys
from pathlib import Path

import click
import msgspec

from ..loadtest.serve.settings import TOLERANCE
from .refusals import Refusal

REMEDY = "`triolet bench peers MODEL` runs Triolet beside other engines; this command compares two files"


class _TwoResults(click.Command):
    """Names the other command where this one is called as that one was."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.format_message()} ({REMEDY})", ctx) from error


@click.command(cls=_TwoResults)
@click.argument("a", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("b", metavar="B.json", type=click.Path(path_type=Path))
@click.option("--tolerance", type=click.FloatRange(0, 1), default=TOLERANCE, show_default=True,
              help="Relative differences below it do not matter.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def compare(a: Path, b: Path, tolerance: float, as_json: bool) -> None:
    """Tell how B differs from A, two results of `triolet bench serve`, and how sure that is.

    The exit code is 1 where B is worse, 3 where the load client was the bottleneck and nothing can be told.
    """
    from rich.console import Console

    from ..loadtest.serve.compare import compare_runs
    from ..loadtest.serve.result import BadResult, read_result
    from ..loadtest.serve.verdict import show_verdict

    for path in (a, b):
        if path.is_dir():
            raise Refusal(f"{path} is a folder: {REMEDY}")
    try:
        verdict = compare_runs(read_result(a), read_result(b), tolerance)
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
