"""The GPU suite: `python -m triolet.loadtest.device.gpu_suite --out DIR`, one command on a machine with an NVIDIA GPU.

Takes nine minutes at most: checks every kernel on the device, measures the device's limits, then every kernel against
them and beside torch's own, whole models on random weights, and neighbours of the launch tables' rows. A run that was
cut, or ran out of time, goes on when the command is given again. With --dry-run the correctness cases run in Triton's
interpreter, small, and no GPU is needed.

DIR gets cases.jsonl (a line for every case), results.json, table.txt and, where matplotlib is installed, plots.
Exits with 1 where a kernel is wrong, a case failed, or a planted wrong kernel was not noticed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

from triolet.loadtest.device.gpu_case import BAD, NEEDS_DEVICE, Case, Figures, Finding, Machine, Skip, Status, Wrong
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_report import write_report

HERE = "triolet.loadtest.device"
# In this order: what is wrong need not be fast, and every fraction needs its limit.
PARTS: dict[str, tuple[str, ...]] = {
    "correctness": ("gpu_correct_attention", "gpu_correct_gemm", "gpu_correct_rows", "gpu_correct_sampling"),
    "limits": ("gpu_limits",),
    "kernels": ("gpu_bench_attention", "gpu_bench_gemm", "gpu_bench_rows"),
    "models": ("gpu_bench_models",),
    "tuning": ("gpu_tuning",),
}
INTERPRETED = "correctness"
# Of the budget, when a part begins no more cases: one run sees something of everything, the next goes on.
SHARES = {"correctness": 0.45, "limits": 1.0, "kernels": 0.7, "models": 0.9, "tuning": 1.0}


def this_machine(dry: bool) -> Machine:
    """Imports torch. Without a GPU, only a dry run has a machine."""
    if dry:
        from triolet.kernels.gpu.mode import interpret_kernels

        interpret_kernels()
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}
    if dry:
        return Machine("cpu", 90, "Triton's interpreter", versions)
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU here: check `nvidia-smi`, or pass --dry-run for the checks that need none")
    major, minor = torch.cuda.get_device_capability()
    return Machine("cuda", 10 * major + minor, torch.cuda.get_device_name(), versions)


def cases_of(part: str, dry: bool) -> Iterator[Case]:
    for module in PARTS[part]:
        try:
            made: Callable[[bool], list[Case]] = import_module(f"{HERE}.{module}").cases
        except ImportError as error:
            yield Case(f"{module} without {error.name}", partial(_skip, f"{error.name} is not installed here"))
        else:
            yield from made(dry)


def _skip(why: str, machine: Machine) -> Figures:
    del machine
    raise Skip(why)


def run_case(case: Case, machine: Machine) -> tuple[Status, Figures, str]:
    """Whatever a case raises is its finding."""
    import torch

    try:
        # A default device slows every call of torch: cases that time the host go without.
        with nullcontext() if case.on_host else torch.device(machine.place):
            torch.manual_seed(0)
            figures = case.run(machine)
            if not machine.dry:
                torch.cuda.synchronize()
    except Skip as skip:
        return "skipped", {}, str(skip)
    except Wrong as wrong:
        return ("right" if case.planted else "wrong"), {}, ("refused: " if case.planted else "") + str(wrong)
    except torch.cuda.OutOfMemoryError as error:
        return "failed", {}, str(error).splitlines()[0]
    except Exception as error:
        traceback.print_exc()
        return "failed", {}, f"{type(error).__name__}: {error}"[:500]
    if case.planted:
        return "wrong", figures, "the planted fault was not noticed: this suite proves nothing"
    if case.checks:
        return "right", figures, ""
    return (case.goal.judge(figures) if case.goal else "measured"), figures, ""


def device_is_lost() -> bool:
    """After an illegal access every call fails: only a new process has a device again."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def run_parts(options: argparse.Namespace, machine: Machine, journal: Journal) -> int:
    """Runs what is not yet found; returns how many cases the budget left out."""
    left_out = 0
    for part in chosen_parts(options.only or list(PARTS)):
        if machine.dry and part != INTERPRETED:
            name = f"{part}/*"
            if name not in journal.findings:
                journal.finish(Finding(name, "skipped", 0.0, note=NEEDS_DEVICE))
            continue
        for case in cases_of(part, machine.dry):
            name = f"{part}/{case.name}"
            if name in journal.findings:
                machine.limits.update(_limits(journal.findings[name]))
                continue
            if time.time() > part_deadline(part, options):
                left_out += 1
                continue
            if not journal.begin(name):
                continue
            began = time.perf_counter()
            status, figures, note = run_case(case, machine)
            seconds = round(time.perf_counter() - began, 2)
            finding = Finding(name, status, seconds, figures, note, case.goal)
            journal.finish(finding)
            machine.limits.update(_limits(finding))
            print(f"{status:9} {seconds:7.2f} s  {name}  {note}", flush=True)
            if not machine.dry:
                if status == "failed" and device_is_lost():
                    _start_again(options)
                _free_memory()
    return left_out


def part_deadline(part: str, options: argparse.Namespace) -> float:
    """A part that was asked for by name, or is the only one that can run, has all the time."""
    left = 0.0 if options.only or options.dry_run else 1.0 - SHARES[part]
    return float(options.deadline - 60 * options.budget * left)


def chosen_parts(names: list[str]) -> list[str]:
    """In the suite's order; what measures fractions takes the limits along."""
    wanted = set(names) | (set() if set(names) == {INTERPRETED} else {"limits"})
    return [part for part in PARTS if part in wanted]


def _limits(finding: Finding) -> dict[str, float]:
    figures = finding.figures if finding.name.startswith("limits/") else {}
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def _free_memory() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _start_again(options: argparse.Namespace) -> None:
    """The same command in a new process with the same deadline; the journal knows where it was."""
    print("the device was lost: going on in a new process", flush=True)
    only = [word for part in options.only or () for word in ("--only", part)]
    command = [sys.executable, "-m", f"{HERE}.gpu_suite", "--out", str(options.out), *only]
    times = ["--budget", str(options.budget), "--deadline", str(options.deadline)]
    os.execv(sys.executable, [*command, *times])


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {HERE}.gpu_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results; give it again to go on")
    parser.add_argument("--dry-run", action="store_true", help="correctness alone, tiny, interpreted: no GPU is needed")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be given several times")
    parser.add_argument("--budget", type=float, default=8.0, metavar="MINUTES", help="begin no case after so long (8)")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.budget <= 0:
        parser.error(f"--budget {options.budget:g}: give minutes above 0")
    options.deadline = options.deadline or time.time() + 60 * options.budget
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    machine = this_machine(options.dry_run)
    try:
        journal = Journal(options.out, machine)
    except ValueError as error:
        sys.exit(str(error))
    left_out = run_parts(options, machine, journal)
    findings = list(journal.findings.values())
    write_report(options.out, machine, findings)
    bad = sum(finding.status in BAD for finding in findings)
    print(f"{len(findings)} cases, {bad} wrong, failed or crashed, {left_out} left out for want of time")
    if left_out:
        print("give the same command again to run those")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
