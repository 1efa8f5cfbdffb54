"""Time reading memory in order on pinned threads: the speed that decoding, which reads all weights, cannot pass.

    python -m triolet.models.read_speed [--threads 2] [--size 1e9]

Prints JSON: bytes per second, the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import reduce

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..kernels.compile_cache import compiled
from ..kernels.simd.arithmetic import reduce_integer_sum
from ..kernels.simd.functions import Values, inline, loop
from ..kernels.simd.lanes import VECTOR_BYTES, VI, at, constant, i32, i64, load, prefetch, scaled
from ..kernels.threads.pool import WorkerPool
from ..kernels.threads.shares import NOTHING, Crew, end_job, stage_before, take, wait_for_job
from ..kernels.threads.waiting import NO_JOB

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
PARTS = 8
ROUNDS = 5
CACHED_BYTES = 1 << 26  # that a round reads from a cache: a millisecond, against which waking the threads is little
AT_ONCE = 8 * VECTOR_BYTES
AHEAD = 2048  # bytes that are prefetched, for machines whose own prefetching stops at a page's end


def _emit_sum(b: ir.IRBuilder, address: ir.Value, steps: ir.Value) -> ir.Value:
    """The sum of 32-bit integers, AT_ONCE bytes a step."""

    def body(step: ir.Value, totals: Values) -> Values:
        place = scaled(b, address, step, AT_ONCE)
        for start in range(0, AT_ONCE, VECTOR_BYTES):
            prefetch(b, at(b, place, start + AHEAD))
        return [b.add(total, load(b, at(b, place, number * VECTOR_BYTES), VI)) for number, total in enumerate(totals)]

    first, *others = loop(b, steps, [constant(i32, 0)] * (AT_ONCE // VECTOR_BYTES), body)
    return b.sext(reduce_integer_sum(b, reduce(b.add, others, first)), i64)


_sum = inline(2, _emit_sum, result=True)


@compiled
def read_in_order(crew: Crew, address: int, steps: int, passes: int, sums: Int64Array) -> None:
    """A worker's body: per job, sum its part of the values. Loops of numba's own would gather them by index."""
    job, part, threads = int(NO_JOB), int(NOTHING), crew.threads
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, 0) + 1
        while True:
            part = take(crew, stage, threads, part)
            if part < 0:
                break
            first, last = steps * part // threads, steps * (part + 1) // threads
            for _ in range(passes):
                sums[8 * part] += _sum(address + first * AT_ONCE, last - first)
        end_job(crew, job, stage, 0)


class Reader:
    """Reads parts of a large array, another one each time, so that no cache holds it. Or one part `passes` times, so
    that a cache which can hold it does."""

    def __init__(self, size: int, threads: int, parts: int = PARTS, passes: int = 1) -> None:
        self._values = np.ones((parts, size // AT_ONCE * AT_ONCE), np.uint8)
        self.sums = np.zeros(8 * threads, np.int64)
        self._pools = [self._pool(part, threads, passes) for part in self._values]

    def _pool(self, part: ByteArray, threads: int, passes: int) -> WorkerPool:
        address, steps, sums = part.ctypes.data, part.size // AT_ONCE, self.sums
        return WorkerPool(threads, lambda crew: read_in_order(crew, address, steps, passes, sums))

    def seconds(self) -> float:
        """Per part, the mean over all."""
        start = time.perf_counter()
        for pool in self._pools:
            pool.run()
        return (time.perf_counter() - start) / len(self._pools)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


def bytes_per_second(size: int, threads: int, *, cached: bool = False, rounds: int = ROUNDS) -> float:
    """The best of the rounds. `cached`: all of it again and again, rather than `size` bytes that no cache holds."""
    part, passes = (size, max(1, CACHED_BYTES // size)) if cached else (size // PARTS, 1)
    reader = Reader(part, threads, 1 if cached else PARTS, passes)
    reader.seconds()  # the first pass meets threads that do not run yet
    best = part * passes / min(reader.seconds() for _ in range(rounds))
    reader.close()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading memory in order.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", type=float, default=1e9, help="bytes, many times a cache's")
    values = parser.parse_args()
    print(json.dumps({"bytes_per_second": round(bytes_per_second(int(values.size), values.threads))}))


if __name__ == "__main__":
    main()
