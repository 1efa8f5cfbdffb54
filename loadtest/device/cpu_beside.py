"""Time the bundled model's steps on the CPU while other programs want the same cores.

    python -m triolet.loadtest.device.cpu_beside [--beside 0 2 7] [--threads 1 2] [--model MODEL]

The other programs are processes that compute without a pause. Prints a JSON object: per number of them and of threads,
the mean and the median milliseconds of a step that decodes one sequence after 512 tokens, of one that decodes 16, and
of a prompt of 512. The mean counts: a few slow steps among fast ones make an answer slow.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from triolet.loadtest.machine import busy_share, machine, versions
from triolet.models.load import load_model
from triolet.models.plan.roofline import StepLoad
from triolet.models.step_times import StepTimer
from triolet.protocol.settings import EngineSettings

BUNDLED: Final = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
LOADS: Final = {
    "decode_1": StepLoad(sequences=1, tokens=1, context=512),
    "decode_16": StepLoad(sequences=16, tokens=1, context=512),
    "prompt_512": StepLoad(sequences=1, tokens=512, context=0),
}


@contextmanager
def others(count: int) -> Generator[None]:
    """So many processes that compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(model: str, threads: int, beside: int, rounds: int) -> dict[str, Any]:
    settings = EngineSettings(model=model, device="cpu", threads=threads, max_running=16)
    stepper, ready = load_model(settings)
    found: dict[str, Any] = {"threads": threads, "beside": beside}
    try:
        timer = StepTimer(stepper, ready, tuple(LOADS.values()), rounds=rounds)
        for name, load in LOADS.items():
            with others(beside):
                times = [1000 * step.duration for step in timer.times(load)]
            found[name] = {
                "steps": len(times), "mean_ms": round(statistics.mean(times), 3),
                "median_ms": round(statistics.median(times), 3), "most_ms": round(max(times), 3),
            }  # fmt: skip
    finally:
        stepper.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time steps while other programs want the same cores.")
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 2, 7])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    parser.add_argument("--rounds", type=int, default=2000, help="of each load, at most 3 seconds (2000)")
    parser.add_argument("--model", default=str(BUNDLED))
    options = parser.parse_args()
    busy = busy_share()
    found = [
        measure(options.model, threads, beside, options.rounds)
        for beside in options.beside
        for threads in options.threads
    ]
    result = {
        "machine": {name: getattr(machine(), name) for name in machine().__struct_fields__},
        "versions": versions("numba", "llvmlite"), "busy_share_before": busy, "steps": found,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
