"""`triolet bench peers`: Triolet and other engines in turn, one process at a time, on one model.

A turn runs every variant of ours and every peer once; ratios are taken within a turn (loadtest/compare/ratios.py).
What is measured is the served path: scheduler, sampling and the worker's link are in our figures.
"""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ..loadtest.compare.cases import CASES, DEFAULT_VARIANTS, ONE, USUAL, Case
from ..models.host import usable_cores
from ..protocol.settings import EngineSettings
from .names import with_local_model
from .options import BUNDLED_MODEL
from .refusals import Refusal

if TYPE_CHECKING:
    from ..loadtest.compare.page import Comparison
    from ..loadtest.compare.peer import Peer
    from ..loadtest.compare.variant import Variant

PAGE_WIDTH: Final = 160  # characters of a table that goes to a file or a pipe

REMEDY: Final = "MODEL is a folder or a .gguf file; `triolet bench compare A.json B.json` compares results"

HELP: Final = """Run Triolet and other engines in turn on MODEL and tell how they compare.

    Each turn runs every variant of ours and every peer, each in a process of its own and never two at once. Ratios are
    taken within a turn and their median is told: only what met the same machine can be compared.

    A peer is a command that reads what to run as JSON and prints JSON lines; loadtest/peers has such programs for
    llama.cpp, OpenVINO GenAI and CTranslate2, and docs/cpu-bench.md says how to set them up:

    \b
      triolet bench peers ref/hf \\
        --peer "llama.cpp q8=ref/venv/bin/python loadtest/peers llama.cpp ref --precision q8" \\
        --variant "int8=--quantize int8" --variant "int8, int8 KV=--quantize int8 --kv-cache-dtype int8"

    Written to --out: NAME.json (every repetition, the machine, versions), NAME.md (the tables) and NAME.svg
    (a bar for each). Leave the machine alone while it runs: before each engine it looks how busy others keep the
    cores, and says so where it is more than a tenth.
    """


def _parsed_peers(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> "list[Peer]":
    from ..loadtest.compare.peer import read_peer

    try:
        return [read_peer(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _OneModel(click.Command):
    """Names the other command where this one is called as that one is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        results = [word for word in args if word.endswith(".json")]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not results:
                raise
            raise click.UsageError(f"{error.format_message()} ({REMEDY})", ctx) from error


@click.command(cls=_OneModel, help=HELP)
@click.argument("model", required=False)
@click.option("--peer", "others", multiple=True, callback=_parsed_peers, help="NAME=COMMAND. May be repeated.")
@click.option("--variant", "variants", multiple=True, default=DEFAULT_VARIANTS, show_default=True,
              help="NAME=OPTIONS: ours, with options of `triolet serve`. May be repeated.")  # fmt: skip
@click.option("--case", "chosen", multiple=True, type=click.Choice(list(CASES)), default=USUAL,
              show_default=True, help="What to measure. May be repeated.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns of every engine.")
@click.option("--repeats", type=click.IntRange(min=1), help="Of every case in a turn.  [default: each case's own]")
@click.option("--threads", type=click.IntRange(min=1), help="Of every engine.  [default: the physical cores]")
@click.option("--check/--no-check", default=True, show_default=True,
              help="Then compare token ids with the reference, and what each variant loses.")  # fmt: skip
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Text for perplexity and divergence.  [default: the held-out conversations]")  # fmt: skip
@click.option(
    "--instances",
    type=click.IntRange(min=0),
    help="Held-out instances of the bundled model that each variant answers, per family; 0 for none.  [default: all]",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("bench-results"),
              show_default=True, help="Folder of what is written.")  # fmt: skip
@click.option("--name", default="peers", show_default=True, help="Of the files.")
@click.option("--title", help="What the tables call the model.  [default: its folder's name]")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
def peers(
    model: str | None,
    others: "list[Peer]",
    variants: tuple[str, ...],
    chosen: tuple[str, ...],
    rounds: int,
    repeats: int | None,
    threads: int | None,
    check: bool,
    text: Path | None,
    instances: int | None,
    out: Path,
    name: str,
    title: str | None,
    as_json: bool,
) -> None:
    from rich.console import Console

    from ..loadtest.compare.accuracy import check_tokens, measure_quality
    from ..loadtest.compare.bars import bars
    from ..loadtest.compare.exact import measure_exact_match
    from ..loadtest.compare.page import Comparison, show
    from ..loadtest.compare.ratios import against_best, against_each, best_against_best, medians, reading_shares
    from ..loadtest.compare.turns import Turns, silent
    from ..loadtest.compare.variant import plain
    from ..loadtest.heldout import HELD_OUT, read_instances
    from ..loadtest.machine import machine

    if model is not None and Path(model).is_file() and not model.endswith(".gguf"):
        raise Refusal(f"{model} is a file: {REMEDY}")
    local = with_local_model(EngineSettings(model=model or str(BUNDLED_MODEL))).model
    given = None if model is None else Path(local)
    cases = [case for case in CASES.values() if case.name in chosen]
    if repeats is not None:
        cases = [msgspec.structs.replace(case, repeats=repeats) for case in cases]
    threads = threads or usable_cores()
    ours = _variants(variants, others, given, threads, cases)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.monotonic()
    loads = os.getloadavg()
    turns = Turns(ours, others, cases, rounds, threads, console)
    turns.run(check=check)
    first = turns.first[ours[0].name].ready
    token_bytes = {name: found.token_bytes(CASES[ONE]) for name, found in turns.first.items()}
    result = Comparison(
        model=title or first.model,
        parameters=first.parameters,
        date=datetime.now(UTC).date().isoformat(),
        command=shlex.join(["triolet", *sys.argv[1:]]).replace(str(Path.home()), "~"),  # for a page that is shared
        machine=machine(),
        versions={"triolet": version("triolet"), **first.versions},
        threads=threads,
        rounds=rounds,
        seconds=round(time.monotonic() - began, 1),
        load_averages=tuple(round(load, 2) for load in loads),
        cases=tuple(cases),
        engines=tuple(turns.engines.values()),
        medians=tuple(medians(turns.rows)),
        against_best=tuple(against_best(turns.rows)),
        against_each=tuple(against_each(turns.rows)),
        best_against_best=tuple(best_against_best(turns.rows)),
        rows=tuple(turns.rows),
        read_speeds=tuple(turns.read_speeds),
        token_bytes=token_bytes,
        reading_shares=tuple(
            reading_shares([row for row in turns.rows if row.case == ONE], token_bytes, turns.read_speeds)
        ),
    )
    path = out / name
    _write(result, path)  # already now: half an hour of turns must not be lost to what comes below
    if check:
        folder = given or BUNDLED_MODEL
        settings = {variant.name: plain(variant.settings) for variant in ours}
        with console.status("comparing tokens and losses with the reference…"):
            tokens = tuple(check_tokens(folder, key, settings[key], turns.first[key].answers) for key in settings)
            quality = tuple(measure_quality(folder, settings, text))
        result = msgspec.structs.replace(result, tokens=tokens, quality=quality)
    if check and instances != 0:
        held_out = read_instances(HELD_OUT, instances)
        with console.status("the bundled model's held-out instances…"):
            exact = tuple(measure_exact_match(each.name, each.settings, held_out, silent) for each in ours)
        result = msgspec.structs.replace(result, exact=exact)
    _write(result, path)
    path.with_name(f"{name}.svg").write_text(bars(result))
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        show(result, Console(highlight=False, width=None if sys.stdout.isatty() else PAGE_WIDTH))
    console.print(f"written: {path}.json, {path}.md, {path}.svg")


def _write(result: "Comparison", path: Path) -> None:
    from ..loadtest.compare.page import page

    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    path.with_name(f"{path.name}.md").write_text(page(result))


def _variants(
    texts: Sequence[str], peers: "Sequence[Peer]", model: Path | None, threads: int, cases: Sequence[Case]
) -> "list[Variant]":
    """Every refusal that can be told before anything runs."""
    from ..loadtest.compare.variant import read_variant

    try:
        ours = [read_variant(text, model, threads, cases) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--variant'") from error
    names = [*(variant.name for variant in ours), *(peer.name for peer in peers)]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise Refusal(f"two engines are called {twice[0]!r}: every --variant and --peer needs a name of its own")
    return ours
