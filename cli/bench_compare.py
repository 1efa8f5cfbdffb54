"""`triolet bench compare`: Triolet and other engines in turn, one process at a time, on one model.

A turn runs every variant of ours and every peer once; ratios are taken within a turn (bench_ratios.py). What is
measured is the served path: scheduler, sampling and the worker's link are in our figures.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..models.host import usable_cores
from ..protocol.steps import LoadProgress
from .bench_accuracy import Quality, TokenCheck, check_tokens, measure_quality
from .bench_cases import CASES, Case
from .bench_machine import QUIET, busy_share, machine
from .bench_page import Comparison, Engine, page, plot, show
from .bench_peer import Peer, read_peer, run_peer
from .bench_ratios import Measured, against_best, against_each, best_against_best, medians
from .bench_variant import DEFAULTS, Turn, Variant, bits_of, plain, read_variant, run_variant
from .options import BUNDLED_MODEL
from .refusals import Refusal, refuse_missing_model

HELP: Final = """Run Triolet and other engines in turn on MODEL and tell how they compare.

    Each turn runs every variant of ours and every peer, each in a process of its own and never two at once. Ratios are
    taken within a turn and their median is told: only what met the same machine can be compared.

    A peer is a command that reads what to run as JSON and prints JSON lines; loadtest/peers has such programs for
    llama.cpp, OpenVINO GenAI and CTranslate2, and docs/cpu-bench.md says how to set them up:

    \b
      triolet bench compare ref/hf \\
        --peer "llama.cpp q8=ref/venv/bin/python loadtest/peers llama.cpp ref --precision q8" \\
        --variant "int8=--quantize int8" --variant "int8, int8 KV=--quantize int8 --kv-cache-dtype int8"

    Written to --out: NAME.json (every repetition, the machine, versions), NAME.md (the tables) and, where matplotlib is
    installed, NAME.png. Leave the machine alone while it runs: before each engine it looks how busy others keep the
    cores, and says so where it is more than a tenth.
    """


def _parsed_peers(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[Peer]:
    try:
        return [read_peer(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(help=HELP)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--peer", "peers", multiple=True, callback=_parsed_peers, help="NAME=COMMAND. May be repeated.")
@click.option("--variant", "variants", multiple=True, default=DEFAULTS, show_default=True,
              help="NAME=OPTIONS: ours, with options of `triolet serve`. May be repeated.")  # fmt: skip
@click.option("--case", "chosen", multiple=True, type=click.Choice(list(CASES)), default=list(CASES),
              show_default=True, help="What to measure. May be repeated.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns of every engine.")
@click.option("--threads", type=click.IntRange(min=1), help="Of every engine.  [default: the physical cores]")
@click.option("--check/--no-check", default=True, show_default=True,
              help="Compare greedy token ids with the reference, and each variant's loss with float32.")  # fmt: skip
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Text for perplexity and divergence.  [default: the held-out conversations]")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("bench-results"),
              show_default=True, help="Folder of what is written.")  # fmt: skip
@click.option("--name", default="compare", show_default=True, help="Of the files.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the tables.")
def compare(
    model: Path | None,
    peers: list[Peer],
    variants: tuple[str, ...],
    chosen: tuple[str, ...],
    rounds: int,
    threads: int | None,
    check: bool,
    text: Path | None,
    out: Path,
    name: str,
    as_json: bool,
) -> None:
    cases = [case for case in CASES.values() if case.name in chosen]
    threads = threads or usable_cores()
    ours = _variants(variants, peers, model, threads, cases)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.monotonic()
    loads = os.getloadavg()
    turns = _Turns(ours, peers, cases, rounds, threads, console)
    turns.run(check=check)
    quality: list[Quality] = []
    tokens: list[TokenCheck] = []
    if check:
        folder = model or BUNDLED_MODEL
        settings = {variant.name: plain(variant.settings) for variant in ours}
        with console.status("comparing tokens and losses with the reference…"):
            tokens = [check_tokens(folder, key, settings[key], turns.first[key].answers) for key in settings]
            quality = measure_quality(folder, settings, text)
    result = Comparison(
        model=turns.first[ours[0].name].ready.model,
        parameters=turns.first[ours[0].name].ready.parameters,
        date=datetime.now(UTC).date().isoformat(),
        command=shlex.join(["triolet", *sys.argv[1:]]),
        machine=machine(),
        versions={"triolet": version("triolet"), **turns.first[ours[0].name].ready.versions},
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
        quality=tuple(quality),
        tokens=tuple(tokens),
        rows=tuple(turns.rows),
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    (out / f"{name}.md").write_text(page(result))
    drawn = plot(result, out / f"{name}.png")
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        show(result, Console(highlight=False))
    console.print(f"written: {out / name}.json, {out / name}.md{f', {out / name}.png' if drawn else ''}")
    if not drawn:
        console.print("no plot: matplotlib is not installed (pip install 'triolet\\[loadtest]')")


def _variants(
    texts: Sequence[str], peers: Sequence[Peer], model: Path | None, threads: int, cases: Sequence[Case]
) -> list[Variant]:
    """Every refusal that can be told before anything runs."""
    try:
        ours = [read_variant(text, model, threads, cases) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--variant'") from error
    refuse_missing_model(ours[0].settings)
    names = [*(variant.name for variant in ours), *(peer.name for peer in peers)]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise Refusal(f"two engines are called {twice[0]!r}: every --variant and --peer needs a name of its own")
    return ours


class _Turns:
    """Runs the turns and keeps what they gave."""

    def __init__(
        self, ours: Sequence[Variant], peers: Sequence[Peer], cases: Sequence[Case], rounds: int, threads: int,
        console: Console,
    ) -> None:  # fmt: skip
        self._ours, self._peers, self._cases = ours, peers, cases
        self._rounds, self._threads, self._console = rounds, threads, console
        self.rows: list[Measured] = []
        self.engines: dict[str, Engine] = {}
        self.first: dict[str, Turn] = {}  # of ours

    def run(self, *, check: bool) -> None:
        repeats = sum(case.repeats for case in self._cases) * (len(self._ours) + len(self._peers))
        columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=repeats * self._rounds)

            def advance() -> None:
                progress.advance(task)

            for turn in range(self._rounds):
                # Every other turn goes backwards: no engine always follows the same neighbour.
                order: list[Variant | Peer] = [*self._ours, *self._peers]
                for engine in order if turn % 2 == 0 else reversed(order):
                    label = f"turn {turn + 1}/{self._rounds}: {engine.name}"
                    progress.update(task, description=label)
                    busy = busy_share()
                    if busy > QUIET:
                        progress.console.print(f"[yellow]others use {busy:.0%} of the cores before {label}")
                    self._take_turn(turn, engine, busy, advance, check=check and turn == 0)

    def _take_turn(
        self, turn: int, engine: Variant | Peer, busy: float, advance: Callable[[], None], *, check: bool
    ) -> None:
        if isinstance(engine, Variant):
            found = run_variant(engine, self._cases, str(turn), _silent, advance, check=check)
            self.first.setdefault(engine.name, found)
            ready, values = found.ready, found.values
            told = Engine(
                name=engine.name, ours=True, bits=bits_of(ready), what=f"Triolet {engine.options}".strip(),
                versions=ready.versions,
            )  # fmt: skip
        else:
            about, values = run_peer(engine, self._cases, self._threads, advance)
            told = Engine(
                name=engine.name, ours=False, bits=about.bits, what=f"{about.engine} {about.precision}",
                versions=about.versions,
            )  # fmt: skip
        self.engines[engine.name] = told
        for case in self._cases:
            repeats = sorted(values[case.name])
            self.rows.append(
                Measured(
                    turn=turn,
                    engine=engine.name,
                    ours=told.ours,
                    bits=told.bits,
                    case=case.name,
                    value=repeats[len(repeats) // 2],
                    repeats=tuple(values[case.name]),
                    busy=round(busy, 3),
                )
            )


def _silent(progress: LoadProgress) -> None:
    """The bars show the turns; loading is a part of one."""
    del progress
