"""The pool: barriers really separate stages, jobs run on all workers, closing ends the threads."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.threads.cores import own_cores
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.waiting import barrier, finish_job, wait_for_job

STAGES = 200
Cells = npt.NDArray[np.int64]


@compiled
def relay(thread: int, threads: int, state: int, cells: Cells, faults: Cells) -> None:
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


def test_a_pool_is_idle_between_its_jobs() -> None:
    found: list[float] = []

    def body(thread: int, threads: int, state: int) -> None:
        done = 0
        while wait_for_job(state, done):
            found.append(pool.idle_seconds())
            done += 1
            finish_job(state, threads, done)

    pool = WorkerPool(1, body)
    assert pool.idle_seconds() == inf  # there was none
    pool.run()
    assert 0 <= pool.idle_seconds() < inf
    pool.run()
    pool.close()
    assert found == [-inf, -inf]


# A pool whose jobs take two seconds, or as long as `work` says, with a barrier in the middle.
POOL = """
import os, signal, sys, threading, time
from triolet.kernels.threads.cores import own_cores
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.waiting import barrier, finish_job, wait_for_job
def nothing():
    pass
work = nothing
def body(thread, threads, state):
    done = generation = 0
    while wait_for_job(state, done):
        work()
        generation = barrier(state, threads, generation)
        done += 1
        finish_job(state, threads, done)
pool = WorkerPool(2, body)
pool.run()
"""


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own; a hang is the failure that is feared here, so there is a limit."""
    return subprocess.run([sys.executable, "-c", POOL + program], capture_output=True, text=True, timeout=120)


def test_the_interpreter_exits_with_sleeping_workers() -> None:
    result = run_program("print('done')")
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_the_interpreter_exits_while_a_job_runs() -> None:
    """Another thread waits for the job; the main thread is at its end."""
    result = run_program("""
running = threading.Event()
def work():
    running.set()
    time.sleep(0.5)
threading.Thread(target=pool.run, daemon=True).start()
running.wait()
print("done")
""")
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_an_interrupt_comes_through_after_the_job_and_leaves_the_pool_usable() -> None:
    result = run_program("""
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
def work():
    if threading.current_thread().name.endswith("-0"):
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
try:
    pool.run()
    time.sleep(5)
    print("no interrupt")
except KeyboardInterrupt:
    work = nothing
    pool.run()
    pool.close()
    print("interrupted")
""")
    assert (result.returncode, result.stdout) == (0, "interrupted\n"), result.stderr


def test_a_forked_child_is_told_that_it_has_no_workers() -> None:
    """It can close its copy and make a pool of its own; the parent's goes on."""
    result = run_program("""
child = os.fork()
if not child:
    try:
        pool.run()
    except RuntimeError as error:
        if "parent process" in str(error):
            pool.close()
            own = WorkerPool(2, body)
            own.run()
            own.close()
            os._exit(7)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
pool.run()
print(status)
""")
    assert (result.returncode, result.stdout) == (0, "7\n"), result.stderr


def test_more_pools_than_cores_finish_their_jobs() -> None:
    """Threads of several pools, pinned to the same cores, yield to each other at their barriers."""
    pools = 3
    cells, faults = (np.zeros((pools, 2, 8), np.int64) for _ in range(2))

    def body(pool: int, thread: int, threads: int, state: int) -> None:
        relay(thread, threads, state, cells[pool], faults[pool])

    made = [WorkerPool(2, functools.partial(body, pool)) for pool in range(pools)]
    callers = [threading.Thread(target=pool.run) for pool in made]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for pool in made:
        pool.close()
    assert (cells[:, :, 0] == STAGES).all()
    assert not faults.any()


def test_one_thread_of_every_core_comes_before_its_sibling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(pid: int) -> set[int]:
        return {0, 1, 2, 3, 5}

    monkeypatch.setattr("os.sched_getaffinity", allowed)
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    assert own_cores(tmp_path) == [0, 2, 5, 1, 3]
