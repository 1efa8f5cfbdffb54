"""How the suite's cases are run: part by part, by one worker or several, in the time that is left. Imports no torch."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from triolet.loadtest.device.gpu_case import (
    BAD,
    LONGEST_DRY,
    NEEDS_DEVICE,
    PARTS,
    SMOKE_SECONDS,
    Finding,
    begin_until,
)  # fmt: skip
from triolet.loadtest.device.gpu_crew import Closed, TimedOut, Worker, WorkerEnded, WorkerRefused
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_report import figures_text

GRACE = 45.0  # seconds after the budget in which the case at hand may end; reports and starting take the rest
LEAST = 5.0  # seconds in which the cases of a part can be listed
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
        if dry and not PARTS[part].dry:
            if f"{part}/*" not in journal.findings:
                journal.finish(Finding(f"{part}/*", "skipped", 0.0, note=NEEDS_DEVICE))
            continue
        longest = LONGEST_DRY if dry else PARTS[part].longest
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
        workers = crew[:1] if PARTS[part].alone else crew
        for worker in crew[len(workers) :]:
            worker.end()
        ask = [asking(worker) for worker in workers]
        # What the smoke has checked is not checked again, and what it had no time for is.
        names = [name for name in names if name.replace("correctness/", "smoke/", 1) not in journal.findings]
        until = times if part != "smoke" or dry else replace(times, stop=times.clock() + SMOKE_SECONDS)
        cut = run_cases(names, ask, journal, until, longest)
        left_out += 0 if part == "smoke" and "correctness" in parts else cut
        if part == "smoke" and not keep_going and (bad := failed(journal, part)):
            print(*bad, "nothing else is run before this is right, or with --keep-going", sep="\n")
            break
    return left_out


def failed(journal: Journal, part: str) -> list[str]:
    """Cases of a part, and what was wrong."""
    return [
        f"{finding.name} {finding.status} ({finding.note})"
        for finding in journal.findings.values()
        if finding.name.startswith(f"{part}/") and finding.status in BAD
    ]
