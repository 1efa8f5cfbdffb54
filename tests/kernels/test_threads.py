"""The pool: barriers really separate stages, jobs run on all workers, closing ends the threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.waiting import barrier, finish_job, wait_for_job

STAGES = 200


@compiled
def relay(thread, threads, state, cells, faults):
    """Every stage, each thread checks that all others have finished the stage before, then adds one to its own cell."""
    done, generation = 0, 0
    while wait_for_job(state, done):
        for stage in range(STAGES):
            expected = done * STAGES + stage
            for other in range(threads):
                if cells[other, 0] != expected:
                    faults[thread, 0] += 1
            generation = barrier(state, threads, generation)
            cells[thread, 0] += 1
            generation = barrier(state, threads, generation)
        done += 1
        finish_job(state, threads, done)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_barriers_separate_the_stages(threads: int) -> None:
    cells, faults = (np.zeros((threads, 8), np.int64) for _ in range(2))
    pool = WorkerPool(threads, lambda thread, threads, state: relay(thread, threads, state, cells, faults))
    for _ in range(3):
        pool.run()
    pool.close()
    assert cells[:, 0].tolist() == [3 * STAGES] * threads
    assert not faults.any()


def test_closing_ends_the_threads_and_is_idempotent() -> None:
    before = threading.active_count()
    cells, faults = (np.zeros((2, 8), np.int64) for _ in range(2))
    pool = WorkerPool(2, lambda thread, threads, state: relay(thread, threads, state, cells, faults))
    assert threading.active_count() == before + 2
    pool.close()
    pool.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        pool.run()


def test_the_interpreter_exits_with_sleeping_workers() -> None:
    program = """
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.waiting import finish_job, wait_for_job
def body(thread, threads, state):
    done = 0
    while wait_for_job(state, done):
        done += 1
        finish_job(state, threads, done)
pool = WorkerPool(2, body)
pool.run()
print("done")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "done\n"
