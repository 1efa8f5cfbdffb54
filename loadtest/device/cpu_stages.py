"""Share of a step's time that is not spent in the GEMMs, of one sequence after 512 tokens unless told otherwise.

    python -m triolet.loadtest.device.cpu_stages [--formats int8 int4] [--sequences 1] [--context 512] [--json]

Two jobs alternate on the same cores and the same packed weights: the whole step, and its GEMMs alone: the same calls
on the same buffers in the same order, with nothing between them. What the end of a stage costs, and the waiting for a
slower thread, so counts as time outside. The share is 1 - GEMMs / step, the median over many short rounds: both of a
round met the same memory. Sampling, scheduler and the link are outside both; `triolet bench offline` tells their share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

from triolet.kernels.compile_cache import compiled, inlined
from triolet.kernels.decoder_step.shape import DOWN, GATE_UP, HEAD, OUT, QKV, Memory, Shape
from triolet.kernels.gemm.cpu import gemm
from triolet.kernels.simd.formats import TAGS, Tag, WeightFormat
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.shares import NOTHING, Crew, end_job, stage_before, take, wait_for_job
from triolet.kernels.threads.waiting import NO_JOB
from triolet.loadtest.device.cpu_step import MODEL_LEN, REFERENCE, make_batch, random_runner
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.cpu.cpu import CpuRunner

ROUND_SECONDS = 0.04  # of either job: short against the minutes over which a shared machine's memory changes


@inlined
def _project(
    tag: Tag, crew: Crew, part: int, shape: Shape, memory: Memory, rows: int, k: int, layer: int, column: int,
    channels: int, out: int, add: int,
) -> None:  # fmt: skip
    """As decoder_step's own: a single row has a copy for each thread. The scales' column follows the weights'."""
    a = memory.activations + (part if rows == 1 else crew.threads) * shape.activation_stride
    gemm(
        tag, part, crew.threads, add, rows, k, a, shape.activation_stride, memory.weights[layer, column],
        memory.weights[layer, column + 1], shape.group_shift, channels, out, channels * 4,
    )  # fmt: skip


@compiled
def _gemms(tag: Tag, crew: Crew, shape: Shape, memory: Memory, rows: int) -> None:
    """A worker's life, as decoder_step.work: every job is one step's GEMMs. Their outputs go where the step's go."""
    job, part = int(NO_JOB), int(NOTHING)
    hidden, mlp, mixed = shape.hidden_padded, shape.mlp_padded, shape.attention_padded
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, 0) + 1
        while True:
            part = take(crew, stage, crew.threads, part)
            if part < 0:
                break
            for layer in range(shape.layers):
                _project(tag, crew, part, shape, memory, rows, hidden, layer, QKV, shape.qkv_padded, memory.qkv, 0)
                _project(tag, crew, part, shape, memory, rows, mixed, layer, OUT, hidden, memory.hidden, 1)
                _project(tag, crew, part, shape, memory, rows, hidden, layer, GATE_UP, 2 * mlp, memory.gate_up, 0)
                _project(tag, crew, part, shape, memory, rows, mlp, layer, DOWN, hidden, memory.hidden, 1)
            head, logits = shape.vocab_padded, memory.logits
            _project(tag, crew, part, shape, memory, rows, hidden, shape.layers, HEAD, head, logits, 0)
        end_job(crew, job, stage, 0)


class GemmsAlone:
    """The GEMMs of a runner's step on threads of their own, pinned to the same cores. One of the two runs at a time."""

    def __init__(self, runner: CpuRunner, weights: DecoderWeights) -> None:
        """For steps that decode as many sequences as the runner has logits for."""
        shape = runner._shape  # pyright: ignore[reportPrivateUsage]  # the step's own
        memory = runner._memory.memory(weights.embedding.ctypes.data)  # pyright: ignore[reportPrivateUsage]  # as above
        tag, rows = TAGS[runner.sizes.weight_format], runner.sizes.max_logit_rows

        def body(crew: Crew, _keep_alive: object = runner) -> None:
            _gemms(tag, crew, shape, memory, rows)

        self._pool = WorkerPool(runner.sizes.threads, body)
        self.run = self._pool.run
        self.run()  # compiles
        self.close = self._pool.close


def seconds_each(job: Callable[[], object], count: int) -> float:
    job()  # wakes the threads, which slept while the other job ran
    start = time.perf_counter()
    for _ in range(count):
        job()
    return (time.perf_counter() - start) / count


def measure(
    spec: ModelSpec, weight_format: WeightFormat, *, sequences: int, context: int, threads: int, rounds: int,
    round_seconds: float = ROUND_SECONDS,
) -> dict[str, Any]:  # fmt: skip
    runner, weights = random_runner(weight_format, sequences=sequences, threads=threads, spec=spec)
    batch = make_batch(runner, sequences, 1, context)
    alone = GemmsAlone(runner, weights)

    def step() -> None:
        runner.forward(batch)

    count = max(1, int(round_seconds / seconds_each(step, 2)))
    steps: list[float] = []
    gemms: list[float] = []
    for _ in range(rounds):
        steps.append(seconds_each(step, count))
        gemms.append(seconds_each(alone.run, count))
    alone.close()
    runner.close()
    shares = [1 - part / whole for part, whole in zip(gemms, steps, strict=True)]
    lowest, _, highest = statistics.quantiles(shares, n=4) if rounds > 1 else [shares[0]] * 3
    return {
        "format": weight_format, "sequences": sequences, "context": context, "threads": threads, "rounds": rounds,
        "step_ms": statistics.median(steps) * 1000, "gemms_ms": statistics.median(gemms) * 1000,
        "share_outside": statistics.median(shares), "quartiles": [lowest, highest],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=get_args(WeightFormat), default=["int8"])
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--context", type=int, default=512, help=f"tokens before, below {MODEL_LEN} (512)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", action="store_true", help="one JSON object per format")
    options = parser.parse_args()
    for weight_format in options.formats:
        found = measure(
            REFERENCE, weight_format, sequences=options.sequences, context=options.context,
            threads=options.threads, rounds=options.rounds,
        )  # fmt: skip
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        low, high = found["quartiles"]
        step, gemms = f"step {found['step_ms']:.3f} ms", f"its GEMMs alone {found['gemms_ms']:.3f} ms"
        outside = f"{found['share_outside']:.1%} outside (half of the rounds {low:.1%} to {high:.1%})"
        load = f"{options.sequences} × {options.context} tokens"
        print(f"{weight_format}, {load}: {step}, {gemms}: {outside}", flush=True)


if __name__ == "__main__":
    main()
