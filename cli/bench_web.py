"""`triolet bench web`: the web tier alone, in front of a worker that follows a script."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from ..loadtest.web.parts import LONG, NAMES, RATES
from .options import BUNDLED_MODEL

if TYPE_CHECKING:
    from ..loadtest.web.bench import Bench, Cores
    from ..loadtest.web.summary import Figure

VERDICTS = {"": "", "target": "green", "floor": "yellow", "misses the floor": "red"}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure this part alone. May be repeated.")
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Of each steady run.")
@click.option("--streams", type=click.IntRange(1, 512), default=64, show_default=True, help="At once, for a rate.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of rates; 1 with --profile.")
@click.option("--profile", type=click.Path(path_type=Path), default=None, help="Sample the server; write to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, every part with its details.")
def web(only: tuple[str, ...], seconds: float, streams: int, rounds: int, profile: Path | None, as_json: bool) -> None:
    """Measure the web tier: events per second, CPU per token and request, gaps, memory of idle streams.

    The server is `triolet serve` on its own core, with a worker that answers every step with token ids from a script.
    They pass through scheduler, detokenizer, outbox and web like a model's. The client, on another core, reads every
    byte and checks every stream: text, order, one end. In the same run it also reads from a bare trio server: absolute
    rates depend on the machine, ratios on the software. Rates are measured in rounds; each ratio is taken within one
    round, and the median of the rounds is shown.

    \b
    triolet bench web                                   all of it, in about three minutes
    triolet bench web --only raw --only sse --json      two parts, as JSON
    triolet bench web --only stalled                    3,000 readers that take no more: ten minutes, never in "all"
    triolet bench web --only sse --profile sse.txt      also where the server's time went
    """
    from rich.console import Console

    from ..loadtest.web.bench import PARTS, Bench, Cores
    from ..loadtest.web.script import Script
    from ..loadtest.web.summary import figures, warnings

    cores = Cores.of_this_machine()
    script = Script(BUNDLED_MODEL)
    bench = Bench(model=BUNDLED_MODEL, cores=cores, script=script, seconds=seconds, streams=streams, profile=profile)
    if cores.client is not None:
        os.sched_setaffinity(0, {cores.client})
    console = Console(stderr=True)
    results: list[dict[str, msgspec.Struct]] = []
    for number in range(rounds if profile is None else 1):
        asked = only or [name for name in NAMES if name not in LONG]
        names = [name for name in asked if not number or name in RATES]
        if names:
            results.append({})
        for name in names:
            with console.status(f"measuring {name}, round {number + 1}" if name in RATES else f"measuring {name}"):
                results[-1][name] = PARTS[name](bench)
    found = figures(results)
    if as_json:
        click.echo(msgspec.json.encode(_json(bench, found, results)))
    else:
        _show(cores, found, warnings(results))


def _json(bench: "Bench", found: "list[Figure]", results: list[dict[str, msgspec.Struct]]) -> dict[str, object]:
    from ..loadtest.machine import machine, versions
    from ..loadtest.web.summary import warnings

    return {
        **{figure.key: figure.value for figure in found},
        "warnings": warnings(results),
        "figures": found,
        "rounds": results,
        "cores": bench.cores,
        "seconds": bench.seconds,
        "streams": bench.streams,
        "machine": machine(),
        "versions": versions("trio", "hypercorn", "quart-trio"),
    }


def _show(cores: "Cores", found: "list[Figure]", said: list[str]) -> None:
    from rich.console import Console

    from ..loadtest.table import terminal_table

    console = Console()
    place = "anywhere" if cores.server is None else f"on core {cores.server}, client and worker on {cores.client}"
    rows = [("", "measured", "rounds", "floor", "target", "")]
    for figure in found:
        measured = f"{_rounded(figure.value)} {figure.unit}"
        rows.append((figure.label, measured, _range(figure), *_bounds(figure), _verdict(figure)))
    styles = [VERDICTS[row[-1]] for row in rows[1:]]
    console.print(terminal_table(rows, title=f"the web tier; server {place}", left=(0, 5), styles=styles))
    for line in said:
        console.print(f"[yellow]{line}")


def _range(figure: "Figure") -> str:
    return f"{_rounded(min(figure.rounds))} to {_rounded(max(figure.rounds))}" if len(figure.rounds) > 1 else ""


def _bounds(figure: "Figure") -> tuple[str, str]:
    sign = "≥" if figure.larger_is_better else "≤"
    floor, target = ("" if bound is None else f"{sign} {bound:g}" for bound in (figure.floor, figure.target))
    return floor, target


def _verdict(figure: "Figure") -> str:
    if figure.target is None:
        return ""
    if figure.meets(figure.target):
        return "target"
    return "floor" if figure.meets(figure.floor) else "misses the floor"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
