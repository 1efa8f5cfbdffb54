"""`triolet bench web`: the web tier alone, in front of a worker that follows a script."""

import os
from pathlib import Path

import click
import msgspec

from ..loadtest.web.bench import PARTS, Bench, Cores
from ..loadtest.web.script import Script
from .options import BUNDLED_MODEL


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Measure this part alone. May be repeated.")
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Of each steady run.")
@click.option("--profile", type=click.Path(path_type=Path), default=None, help="Sample the server, write to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def web(only: tuple[str, ...], seconds: float, profile: Path | None, as_json: bool) -> None:
    """Measure the web tier."""
    cores = Cores.of_this_machine()
    bench = Bench(model=BUNDLED_MODEL, cores=cores, script=Script(BUNDLED_MODEL), seconds=seconds, profile=profile)
    if cores.client is not None:
        os.sched_setaffinity(0, {cores.client})
    results = {}
    for name in only or PARTS:
        results[name] = PARTS[name](bench)
        click.echo(f"{name}: {msgspec.json.encode(results[name]).decode()}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(results))
