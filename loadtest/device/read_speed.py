"""Time reading memory in order on pinned threads: the speed that decoding, which reads all weights, cannot pass.

    python -m triolet.loadtest.device.read_speed [--threads 2] [--size 1e9]

Prints JSON: bytes per second, the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np
import numpy.typing as npt

from triolet.kernels.compile_cache import compiled
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.waiting import finish_job, wait_for_job

Int64Array = npt.NDArray[np.int64]
PARTS = 8
ROUNDS = 5


@compiled
def read_in_order(thread: int, threads: int, state: int, values: Int64Array, sums: Int64Array) -> None:
    """A worker's body: per job, sum its part of the values."""
    done, size = 0, len(values)
    while wait_for_job(state, done):
        done += 1
        total = 0
        for index in range(size * thread // threads, size * (thread + 1) // threads):
            total += values[index]
        sums[8 * thread] += total
        finish_job(state, threads, done)


class Reader:
    """Reads parts of a large array, another one each time, so that no cache holds it."""

    def __init__(self, size: int, threads: int) -> None:
        self._values = np.ones((PARTS, size // 8), np.int64)
        self._sums = np.zeros(8 * threads, np.int64)
        self._pools = [self._pool(part, threads) for part in self._values]

    def _pool(self, part: Int64Array, threads: int) -> WorkerPool:
        return WorkerPool(threads, lambda thread, count, state: read_in_order(thread, count, state, part, self._sums))

    def seconds(self) -> float:
        """Per part, the mean over all."""
        start = time.perf_counter()
        for pool in self._pools:
            pool.run()
        return (time.perf_counter() - start) / len(self._pools)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading memory in order.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", type=float, default=1e9, help="bytes, many times a cache's")
    values = parser.parse_args()
    size = int(values.size) // PARTS
    reader = Reader(size, values.threads)
    reader.seconds()  # the first pass meets threads that do not run yet
    print(json.dumps({"bytes_per_second": round(size / min(reader.seconds() for _ in range(ROUNDS)))}))
    reader.close()


if __name__ == "__main__":
    main()
