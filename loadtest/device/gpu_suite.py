"""The GPU suite: `python -m triolet.loadtest.device.gpu_suite --out DIR`, one command on a machine with an NVIDIA GPU.

Takes nine minutes at most. A smoke of one minute comes first: a launch of every kind of kernel, and a small model. The
run ends there if something is wrong. Then it checks every kernel on the device, measures the device's limits, every
kernel against them and beside torch's own and other libraries', whole models on random weights, their server with every
token streamed, and neighbours of the launch tables' rows. A run that was cut, or ran out of time, goes on when the
command is given again. With --dry-run the checks, a small model and its server run in Triton's interpreter, and no GPU
is needed.

Cases run in processes of their own. One that hangs or crashes is a line in the table, and the next goes on in a new
process.

DIR gets cases.jsonl (a line for every case), results.json, table.txt, log.txt, goals.svg and triton-cache.tar.gz. Exits
with 1 where a kernel is wrong, a case failed, or a planted wrong kernel was not noticed.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from triolet.loadtest.device.gpu_case import (
    ALONE,
    BAD,
    DRY,
    HERE,
    LONGEST,
    LONGEST_DRY,
    NEEDS_DEVICE,
    PARTS,
    SMOKE_SECONDS,
    Finding,
    begin_until,
    chosen_parts,
)
from triolet.loadtest.device.gpu_crew import Closed, TimedOut, Worker, WorkerEnded, WorkerRefused, scratch_folders
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_report import figures_text, write_report
from triolet.loadtest.device.gpu_triton_cache import FILE as TRITON_CACHE
from triolet.loadtest.device.gpu_triton_cache import pack, unpack
from triolet.loadtest.device.gpu_wheels import install_wheels, path_with

GRACE = 45.0  # seconds after the budget in which the case at hand may end; reports and starting take the rest
LEAST = 5.0  # seconds in which the cases of a part can be listed
MANY = 8  # workers of the part that is bound by compiling on the host
Ask = Callable[[str, float], Finding]  # a case's name and its seconds


@dataclass(slots=True)
class Times:
    """When the run began, how long it begins cases, and when it stops for good."""

    began: float
    minutes: float
    shared: bool  # parts share the budget
    clock: Callable[[], float] = time.monotonic
    stop: float = math.inf  # of a part, before the run's end

    @property
    def end(self) -> float:
        return min(self.stop, self.began + 60 * self.minutes + GRACE)

    def may_begin(self, part: str) -> bool:
        return self.clock() <= min(self.stop, begin_until(part, self.began, self.minutes, self.shared))

    def seconds_for(self, longest: float) -> float:
        return min(longest, self.end - self.clock())


def run_cases(names: Iterable[str], ask: Sequence[Ask], journal: Journal, times: Times, longest: float) -> int:
    """Runs what is not yet found, as many at once as there are `ask`; returns how many were left out."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        if name not in journal.findings:
            waiting.put(name)
    left_out: list[str] = []

    def work(ask: Ask) -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            if not times.may_begin(name.partition("/")[0]):
                left_out.append(name)
            elif journal.begin(name):
                try:
                    finding = run_one(name, ask, times, longest)
                except (Closed, WorkerRefused) as error:  # the run is over, or this machine has no device any more
                    journal.cut(name)
                    left_out.append(name)
                    print(f"{name} was not run: {error}", flush=True)
                    return
                if finding is None:
                    journal.cut(name)
                    left_out.append(name)
                else:
                    journal.finish(finding)
                    told = finding.note or figures_text(finding.figures)
                    print(f"{finding.status:9} {finding.seconds:7.2f} s  {name}  {told}", flush=True)

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in ask]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(left_out) + waiting.qsize()


def run_one(name: str, ask: Ask, times: Times, longest: float) -> Finding | None:
    """What was found; None where the run's own end cut it short."""
    seconds = times.seconds_for(longest)
    began = time.monotonic()
    try:
        return ask(name, seconds)
    except TimedOut as error:
        if seconds < longest:
            return None
        return Finding(name, "crashed", round(time.monotonic() - began, 2), note=str(error))
    except WorkerEnded as error:
        return Finding(name, "crashed", round(time.monotonic() - began, 2), note=f"{error}; see log.txt")


def known_figures(journal: Journal) -> dict[str, float]:
    """What later cases build on: the limits, and each model's offline rate."""
    known: dict[str, float] = {}
    for name, finding in list(journal.findings.items()):
        if name.startswith("limits/"):
            known |= {figure: value for figure, value in finding.figures.items() if isinstance(value, float)}
        elif name.startswith("models/") and "tokens_s" in finding.figures:
            known[f"{name.removeprefix('models/')} tokens_s"] = finding.figures["tokens_s"]
    return known


def run_parts(
    parts: list[str], crew: list[Worker], journal: Journal, times: Times, *, dry: bool, keep_going: bool
) -> int:
    """Returns how many cases the budget left out."""

    def asking(worker: Worker) -> Ask:
        def ask(name: str, seconds: float) -> Finding:
            return Finding.from_json(worker.ask({"run": name, "known": known_figures(journal)}, seconds)["finding"])

        return ask

    left_out = 0
    for part in parts:
        if dry and part not in DRY:
            if f"{part}/*" not in journal.findings:
                journal.finish(Finding(f"{part}/*", "skipped", 0.0, note=NEEDS_DEVICE))
            continue
        longest = LONGEST_DRY if dry else LONGEST[part]
        if times.seconds_for(longest) < LEAST:
            print(f"{part}: no time was left to look at it")
            left_out += 1
            continue
        try:
            names = crew[0].ask({"list": part}, times.seconds_for(longest))["names"]
        except (WorkerEnded, WorkerRefused) as error:
            print(f"{part}: its cases could not be listed: {error}")
            left_out += 1
            continue
        if part in ALONE:
            for worker in crew[1:]:
                worker.end()
        workers = crew[:1] if part in ALONE else crew
        ask = [asking(worker) for worker in workers]
        if part == "smoke":
            soon = times if dry else replace(times, stop=times.clock() + SMOKE_SECONDS)
            if cut := run_cases(names, ask, journal, soon, longest):
                print(f"smoke: {cut} cases had no time, correctness has them")
            if not keep_going and (bad := failed(journal, part)):
                print(f"{', '.join(bad)}: nothing else is run before this is right, or with --keep-going")
                break
            continue
        # What the smoke has checked is not checked again.
        names = [name for name in names if name.replace("correctness/", "smoke/", 1) not in journal.findings]
        left_out += run_cases(names, ask, journal, times, longest)
    return left_out


def failed(journal: Journal, part: str) -> list[str]:
    """Cases of a part, and what was wrong."""
    return [
        f"{finding.name} {finding.status} ({finding.note})"
        for finding in journal.findings.values()
        if finding.name.startswith(f"{part}/") and finding.status in BAD
    ]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {HERE}.gpu_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results; give it again to go on")
    parser.add_argument(
        "--dry-run", action="store_true", help=f"tiny and interpreted, no GPU is needed: {', '.join(DRY)}"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be given several times")
    parser.add_argument("--keep-going", action="store_true", help="after a smoke that failed, too")
    parser.add_argument("--budget", type=float, default=8.0, metavar="MINUTES", help="begin no case after so long (8)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that check kernels at the same time")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="install the wheels of this folder, for this run alone"
    )
    parser.add_argument(
        "--triton-cache",
        type=Path,
        metavar="FILE",
        help=f"a {TRITON_CACHE} of another run: compile its kernels no more",
    )
    options = parser.parse_args(arguments)
    if options.budget <= 0:
        parser.error(f"--budget {options.budget:g}: give minutes above 0")
    if options.workers is None:
        options.workers = 1 if options.dry_run else min(MANY, max(1, (os.cpu_count() or 1) // 2))
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: give 1 or more")
    if options.wheels is not None and not options.wheels.is_dir():
        parser.error(f"--wheels {options.wheels}: there is no such folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    options = parsed(arguments)
    # The end of this process must be the end of its workers, also when somebody else's time limit ends it.
    signal.signal(
        signal.SIGTERM, lambda _signal, _frame: sys.exit("ended by a signal; give the same command again to go on")
    )
    options.out.mkdir(parents=True, exist_ok=True)
    # A part that was asked for by name, or is the only one that can run, has all the time.
    times = Times(began, options.budget, shared=not (options.only or options.dry_run))
    with ExitStack() as stack:
        site, cache = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"triolet-{use}-")))
            for use in ("suite", "triton")
        )
        kept = options.out / TRITON_CACHE
        try:
            if options.wheels is not None:
                print(install_wheels(options.wheels, site))
            for archive in (options.triton_cache, kept if kept.exists() else None):
                if archive is not None:
                    print(unpack(archive, cache))
            stack.callback(lambda: print(pack(cache, kept)))  # when all workers have ended
            environment = path_with(site, options.workers) | {"TRITON_CACHE_DIR": str(cache)}
            crew = [
                stack.enter_context(
                    Worker(
                        options.out / "log.txt", dry=options.dry_run, environment=environment,
                        scratch=stack.enter_context(scratch_folders("triolet-suite-")),
                    )
                )
                for _ in range(options.workers)
            ]  # fmt: skip
            machine = crew[0].machine()
            journal = Journal(options.out, machine)
        except (ValueError, WorkerRefused, WorkerEnded) as error:
            sys.exit(str(error))
        try:
            parts = chosen_parts(options.only or list(PARTS))
            left_out = run_parts(
                parts, crew, journal, times, dry=options.dry_run, keep_going=options.keep_going
            )  # fmt: skip
        finally:  # also when the run is ended from outside: what there is, is worth reading
            machine.limits.update(known_figures(journal))
            findings = list(journal.findings.values())
            write_report(options.out, machine, findings)
    bad = sum(finding.status in BAD for finding in findings)
    print(f"{len(findings)} cases, {bad} wrong, failed or crashed, {left_out} left out for want of time")
    if left_out:
        print("give the same command again to run those")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
