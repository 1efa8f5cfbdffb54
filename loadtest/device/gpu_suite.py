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
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from triolet.loadtest.device.gpu_case import BAD, HERE, PARTS, chosen_parts
from triolet.loadtest.device.gpu_crew import Worker, WorkerEnded, WorkerRefused, scratch_folders
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_report import write_report
from triolet.loadtest.device.gpu_run import Times, known_figures, run_parts
from triolet.loadtest.device.gpu_triton_cache import FILE as TRITON_CACHE
from triolet.loadtest.device.gpu_triton_cache import pack, unpack
from triolet.loadtest.device.gpu_wheels import install_wheels, path_with

MANY = 8  # workers of the parts that are bound by compiling on the host


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {HERE}.gpu_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    dry = (name for name, part in PARTS.items() if part.dry)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results; give it again to go on")
    parser.add_argument(
        "--dry-run", action="store_true", help=f"tiny and interpreted, no GPU is needed: {', '.join(dry)}"
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
    parts = chosen_parts(options.only or list(PARTS))
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
            for worker in () if PARTS[parts[0]].alone else crew:
                worker.begin()
            machine = crew[0].machine()
            journal = Journal(options.out, machine)
        except (ValueError, WorkerRefused, WorkerEnded) as error:
            sys.exit(str(error))
        try:
            left_out = run_parts(parts, crew, journal, times, dry=options.dry_run, keep_going=options.keep_going)
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
