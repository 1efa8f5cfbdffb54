"""The process in which the suite's cases run: `python -m triolet.loadtest.device.gpu_worker [--dry-run]`.

It answers lines of JSON on its standard input with lines of JSON on its standard output: `{"list": part}` with names,
`{"run": "part/name", "known": figures}` with a finding. Its first line says what machine this is, or why it cannot
work. What kernels and libraries print goes to standard error. When the device is lost it says so and ends: after an
illegal access every call of a process fails, and only a new one has a device again.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any, cast

from triolet.loadtest.device.gpu_case import Figures, Finding, GpuCase, GpuMachine, Skip, Status, Wrong, cases_of

LOST = 3  # exit status: the device is lost, start another worker


def this_machine(dry: bool) -> GpuMachine:
    """Imports torch. Without a GPU, only a dry run has a machine; ValueError otherwise."""
    if dry:
        from triolet.kernels.gpu.mode import interpret_kernels

        interpret_kernels()
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}
    if dry:
        return GpuMachine("cpu", 90, "Triton's interpreter", versions)
    if not torch.cuda.is_available():
        raise ValueError(
            "torch sees no GPU here: check `nvidia-smi`, or pass --dry-run for the checks that need none"
        )  # fmt: skip
    from triolet.kernels.gpu.language import OVERLAPPING, overlap_launches

    properties = cast("Any", torch.cuda.get_device_properties(0))  # Any: torch declares no fields
    capability = 10 * properties.major + properties.minor
    overlap_launches(capability >= OVERLAPPING)  # Triton compiles anew for it: all workers do as a server does
    return GpuMachine(
        "cuda", capability, properties.name, versions,
        multiprocessors=properties.multi_processor_count,
    )  # fmt: skip


def run_case(case: GpuCase, machine: GpuMachine) -> tuple[Status, Figures, str]:
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
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def free_memory() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


class Desk:
    """Answers requests about cases."""

    def __init__(self, machine: GpuMachine) -> None:
        self._machine = machine
        self._cases: dict[str, GpuCase] = {}

    def names(self, part: str) -> list[str]:
        made = {f"{part}/{case.name}": case for case in cases_of(part, self._machine.dry)}
        self._cases |= made
        return list(made)

    def run(self, name: str, known: dict[str, float]) -> Finding:
        if name not in self._cases:
            self.names(name.partition("/")[0])
        case = self._cases[name]
        self._machine.limits.update(known)
        began = time.perf_counter()
        status, figures, note = run_case(case, self._machine)
        return Finding(name, status, round(time.perf_counter() - began, 2), figures, note, case.goal)


def main() -> int:
    # Kernels, torch and forked programs write to descriptor 1: what they say must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()

    def say(values: dict[str, Any]) -> None:  # Any: JSON
        answers.write(json.dumps(values) + "\n")

    dry = "--dry-run" in sys.argv
    try:
        machine = this_machine(dry)
    except (ValueError, ImportError) as error:
        say({"refused": str(error)})
        return 1
    say({"machine": machine.as_json()})
    desk = Desk(machine)
    for line in sys.stdin:
        asked = json.loads(line)
        if "list" in asked:
            say({"names": desk.names(asked["list"])})
            continue
        print(f"--- {asked['run']}", file=sys.stderr, flush=True)
        finding = desk.run(asked["run"], asked["known"])
        lost = not dry and finding.status == "failed" and device_is_lost()
        say({"finding": finding.as_json(), "lost": lost})
        if lost:
            answers.flush()
            os._exit(LOST)  # an orderly end would ask the lost device
        if not dry:
            free_memory()
    return 0


if __name__ == "__main__":
    sys.exit(main())
