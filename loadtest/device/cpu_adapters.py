"""Time steps in which every row has a LoRA adapter of its own against steps of the base model, on the CPU.

    python -m triolet.loadtest.device.cpu_adapters [--formats bfloat16 int8] [--rows 32] [--rank 16] [--json FILE]

Random weights of the 125M reference model; all seven matrices of every layer are adapted. Base and adapters take turns,
so that whatever else the machine does meets both. A turn's ratio is the base's seconds per step over the adapters'. It
is of wall time, or with one thread of CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from msgspec.structs import replace

from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.device.cpu_step import make_batch, random_runner
from triolet.loadtest.device.random_adapter import random_adapter
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.rows import Batch

CONTEXT = 512  # tokens of each row before the step


def milliseconds(runner: CpuRunner, batch: Batch, steps: int, clock: Callable[[], float]) -> float:
    """Per step."""
    began = clock()
    for _ in range(steps):
        runner.forward(batch)
    return 1000 * (clock() - began) / steps


def run(weight_format: WeightFormat, rows: int, rank: int, threads: int, turns: int, steps: int) -> dict[str, Any]:
    """Times in milliseconds per step; a turn is the base's, then the adapters'."""
    runner, _ = random_runner(weight_format, sequences=rows, threads=threads, adapters=True)
    adapters = [runner.pack_adapter(random_adapter(runner.spec, seed, rank, alike=True)) for seed in range(rows)]
    for adapter in adapters:
        runner.add_adapter(adapter)
    base = make_batch(runner, rows, 1, CONTEXT)
    adapted = replace(base, adapters=np.array([adapter.address for adapter in adapters], np.int64))
    clock = time.process_time if threads == 1 else time.perf_counter
    for batch in (base, adapted):
        runner.forward(batch)
    pairs = [
        (milliseconds(runner, base, steps, clock), milliseconds(runner, adapted, steps, clock)) for _ in range(turns)
    ]
    runner.close()
    ratios = sorted(plain / slower for plain, slower in pairs)
    return {
        "format": weight_format, "rows": rows, "rank": rank, "threads": threads,
        "clock": "CPU time" if threads == 1 else "wall time",
        "base": round(statistics.median(plain for plain, _ in pairs), 2),
        "adapters": round(statistics.median(slower for _, slower in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": (round(ratios[len(ratios) // 4], 3), round(ratios[-1 - len(ratios) // 4], 3)),
        "turns": [(round(plain, 2), round(slower, 2)) for plain, slower in pairs],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m triolet.loadtest.device.cpu_adapters", description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=get_args(WeightFormat), default=["bfloat16", "int8"])
    parser.add_argument("--rows", type=int, default=32, help="each with its own adapter (32)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2, help="per turn")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    results = list[dict[str, Any]]()
    for weight_format in options.formats:
        found = run(weight_format, options.rows, options.rank, options.threads, options.turns, options.steps)
        results.append(found)
        low, high = found["quartiles"]
        print(
            f"{weight_format}, {options.threads} threads, {found['clock']}: {options.rows} rows in {found['base']} ms, "
            f"with adapters of rank {options.rank} in {found['adapters']} ms: {found['ratio']} of the speed "
            f"({low} to {high})",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
