"""The turns of `triolet bench peers`: one engine after another, each alone on the machine while it runs."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ...protocol.steps import LoadProgress
from ..machine import QUIET, busy_share
from .cases import Case
from .page import ComparedEngine
from .peer import Peer, run_peer
from .ratios import Measured
from .variant import Variant, VariantTurn, bits_of, run_variant


class Turns:
    """Runs the turns and keeps their results."""

    def __init__(
        self, ours: Sequence[Variant], peers: Sequence[Peer], cases: Sequence[Case], rounds: int, threads: int,
        console: Console,
    ) -> None:  # fmt: skip
        self._ours, self._peers, self._cases = ours, peers, cases
        self._rounds, self._threads, self._console = rounds, threads, console
        self.rows: list[Measured] = []
        self.engines: dict[str, ComparedEngine] = {}
        self.first: dict[str, VariantTurn] = {}  # of ours
        self.read_speeds: list[float] = []  # of memory, in bytes per second, in each turn

    def run(self, *, check: bool) -> None:
        repeats = sum(case.repeats for case in self._cases) * (len(self._ours) + len(self._peers))
        columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=repeats * self._rounds)

            def advance() -> None:
                progress.advance(task)

            for turn in range(self._rounds):
                progress.update(task, description=f"turn {turn + 1}/{self._rounds}: reading memory")
                self.read_speeds.append(read_speed(self._threads))
                # Every other turn runs in reverse, so that no engine always follows the same neighbour.
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
            found = run_variant(engine, self._cases, str(turn), silent, advance, check=check)
            self.first.setdefault(engine.name, found)
            ready, values = found.ready, found.values
            told = ComparedEngine(
                name=engine.name, ours=True, bits=bits_of(ready), what=f"Triolet {engine.options}".strip(),
                versions=ready.versions,
            )  # fmt: skip
        else:
            about, values = run_peer(engine, self._cases, self._threads, advance)
            told = ComparedEngine(
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


def read_speed(threads: int) -> float:
    """Bytes per second. In a process of its own, as every engine."""
    command = [sys.executable, "-m", "triolet.models.read_speed", "--threads", str(threads)]
    found: dict[str, float] = msgspec.json.decode(subprocess.check_output(command))
    return found["bytes_per_second"]


def silent(progress: LoadProgress) -> None:
    """The bars show turns; loading is part of a turn."""
    del progress
