"""What the stages of a step cost on many cores, predicted from what they cost on one and two.

    python -m triolet.loadtest.device.many_cores [--spec llama-3.2-1b] [--json]

Measured here: taking a share of one's own, and the end of a stage with one thread and with two, of stages without work.
Predicted for a step of one sequence: the ends of all stages, if the line that counts shares passes from thread to
thread (each pass takes what it takes between two cores here), and the loss because panels of 16 channels cannot be cut.
Assumed is how fast so many cores read memory: --bandwidth.
"""

import argparse
import json
import statistics
import time
from math import ceil
from typing import Any, Final

from msgspec import Struct

from triolet.kernels.compile_cache import compiled
from triolet.kernels.gemm.tile import PANEL
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.shares import NOTHING, STAGES, Crew, end_job, stage_before, take, wait_for_job
from triolet.kernels.threads.waiting import NO_JOB
from triolet.loadtest.machine import machine

LAYERS: Final = 200  # of a job of the measurement
ROUNDS: Final = 31
BANDWIDTH: Final = {8: 80.0, 32: 200.0, 96: 400.0}  # GB/s, of servers with so many cores
STAGES_OF_LAYER: Final = 6  # of one row: four projections, rotation, attention


class MatrixShapes(Struct, frozen=True):
    """Output channels and inputs of a layer's projections, and of the head."""

    layers: int
    projections: tuple[tuple[int, int], ...]
    head: tuple[int, int]


SPECS: Final = {
    "llama-3.2-1b": MatrixShapes(16, ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)), (128256, 2048)),
    "qwen3-0.6b": MatrixShapes(28, ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)), (151936, 1024)),
}


@compiled
def empty_stages(crew: Crew, shares: int) -> None:
    """A worker's body: a job is LAYERS * STAGES stages, whose shares are nothing to do."""
    job, share = int(NO_JOB), int(NOTHING)
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, LAYERS)
        for _ in range(LAYERS * STAGES):
            stage += 1
            while True:
                share = take(crew, stage, shares, share)
                if share < 0:
                    break
        end_job(crew, job, stage, LAYERS)


def stage_seconds(threads: int, shares: int) -> float:
    pool = WorkerPool(threads, lambda crew: empty_stages(crew, shares))
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        pool.run()
        times.append((time.perf_counter() - began) / (LAYERS * STAGES))
    pool.close()
    return statistics.median(times)


def uneven(shape: MatrixShapes, threads: int) -> float:
    """The part of a step's reading that is lost: the largest part of each matrix's panels, less the mean one."""
    whole = lost = 0.0
    for channels, inputs, count in [(*shape.head, 1), *((*each, shape.layers) for each in shape.projections)]:
        panels = channels // PANEL
        whole += count * channels * inputs
        lost += count * (ceil(panels / threads) * threads / panels - 1) * channels * inputs
    return lost / whole


def predict(shape: MatrixShapes, threads: int, bandwidth: float, own: float, passed: float) -> dict[str, float]:
    """Of int8 weights, milliseconds. `own`, `passed`: seconds to take a share, and for a line to pass to a core."""
    weights = shape.head[0] * shape.head[1] + shape.layers * sum(n * k for n, k in shape.projections)
    reading = weights / (bandwidth * 1e9)
    ends = (shape.layers * STAGES_OF_LAYER + 1) * (4 * own + (threads + 1) * passed)
    lost = reading * uneven(shape, threads)
    return {
        "threads": threads, "assumed_gb_s": bandwidth, "reading_ms": reading * 1e3, "ends_of_stages_ms": ends * 1e3,
        "uneven_ms": lost * 1e3, "efficiency": reading / (reading + ends + lost),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict what a step's stages cost on many cores.")
    parser.add_argument("--spec", choices=SPECS, default="llama-3.2-1b")
    parser.add_argument("--bandwidth", type=float, nargs=3, metavar=("OF_8", "OF_32", "OF_96"),
                        default=list(BANDWIDTH.values()), help="GB/s, assumed (80 200 400)")  # fmt: skip
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    one, four = stage_seconds(1, 1), stage_seconds(1, 4)
    own, alone = (four - one) / 3, one
    passed = (stage_seconds(2, 2) - alone) / 2  # to the one that counts last, and back
    rows = [
        predict(SPECS[options.spec], threads, bandwidth, own, passed)
        for threads, bandwidth in zip(BANDWIDTH, options.bandwidth, strict=True)
    ]
    found: dict[str, Any] = {
        "spec": options.spec, "machine": machine().cpu, "share_ns": own * 1e9, "stage_of_one_ns": alone * 1e9,
        "line_passes_ns": passed * 1e9, "predicted": rows,
    }  # fmt: skip
    if options.json:
        print(json.dumps(found))
        return
    print(f"a share {own * 1e9:.0f} ns, a stage of one thread {alone * 1e9:.0f} ns, a pass {passed * 1e9:.0f} ns")
    for row in rows:
        times = f"reading {row['reading_ms']:.2f} ms, ends of stages {row['ends_of_stages_ms']:.2f}"
        lost = f"uneven parts {row['uneven_ms']:.2f}"
        print(f"{row['threads']:3} threads: {times}, {lost}: {row['efficiency']:.0%} of the bandwidth")


if __name__ == "__main__":
    main()
