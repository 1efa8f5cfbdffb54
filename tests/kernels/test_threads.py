"""The pool: stages follow each other, each share is done once, late threads delay nobody, closing ends the threads."""

from __future__ import annotations

import functools
import os
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
from triolet.kernels.threads.shares import (
    COMPLETE,
    NOTHING,
    STAGES,
    Crew,
    end_job,
    stage_before,
    state_bytes,
    take,
    taking_part,
    wait_for_job,
)
from triolet.kernels.threads.waiting import NO_JOB, set_resting

LAYERS = 9
JOB_STAGES = LAYERS * STAGES
JOBS = 3
WIDEST = 13  # shares of a stage
Marks = npt.NDArray[np.int64]


@compiled
def relay(crew: Crew, marks: Marks, faults: Marks) -> None:
    """Each share marks itself, and looks whether all of the stage before it did so. Stages have 1 to WIDEST shares."""
    job, share = int(NO_JOB), int(NOTHING)
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, LAYERS)
        for number in range((job - 1) * JOB_STAGES, job * JOB_STAGES):
            stage += 1
            shares = 1 + number * 7 % WIDEST
            while True:
                share = take(crew, stage, shares, share)
                if share < 0:
                    break
                for other in range(1 + (number - 1) * 7 % WIDEST if number > 0 else 0):
                    faults[crew.thread, 0] += marks[:, number - 1, other].sum() != 1
                marks[crew.thread, number, share] += 1
        end_job(crew, job, stage, LAYERS)


def marks_and_faults(threads: int) -> tuple[Marks, Marks]:
    return np.zeros((threads, JOBS * JOB_STAGES, WIDEST), np.int64), np.zeros((threads, 8), np.int64)


def expected_marks(jobs: int) -> Marks:
    marks = np.zeros((JOBS * JOB_STAGES, WIDEST), np.int64)
    for number in range(jobs * JOB_STAGES):
        marks[number, : 1 + number * 7 % WIDEST] = 1
    return marks


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_stages_follow_each_other_and_each_share_is_done_once(threads: int) -> None:
    """With more threads than cores, some lose theirs in the middle."""
    marks, faults = marks_and_faults(threads)
    pool = WorkerPool(threads, lambda crew: relay(crew, marks, faults))
    for _ in range(JOBS):
        pool.run()
    pool.close()
    assert (marks.sum(axis=0) == expected_marks(JOBS)).all()
    assert not faults.any()


def test_a_thread_that_does_not_run_holds_nobody_up() -> None:
    """It comes when three jobs are over, and finds nothing to do; then it takes part again."""
    held, came, done = threading.Event(), threading.Event(), list[tuple[int, int, int]]()

    def body(crew: Crew) -> None:
        job = NO_JOB
        while (job := wait_for_job(crew, job)) > 0:
            if crew.thread == 1:
                held.wait()
                came.set()
            stage = stage_before(job, 1)
            for _ in range(3):
                stage, share = stage + 1, NOTHING
                while (share := take(crew, stage, 4, share)) >= 0:
                    done.append((job, stage, share))
            end_job(crew, job, stage, 1)

    pool = WorkerPool(2, body)
    for _ in range(3):
        pool.run()
    expected = [
        (job, stage_before(job, 1) + number, share) for job in (1, 2, 3) for number in (1, 2, 3) for share in range(4)
    ]
    assert sorted(done) == expected
    held.set()
    came.wait()
    pool.run()
    pool.close()
    assert len(done) == len(expected) + 12


def kernel_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("triolet-kernel-")]


def test_some_threads_rest_and_take_part_again() -> None:
    """Each share of a job waits for the others, so it takes as many threads as there are shares."""
    part: threading.Barrier
    took: list[int] = []

    def body(crew: Crew) -> None:
        job = NO_JOB
        while (job := wait_for_job(crew, job)) > 0:
            stage, share, own = stage_before(job, 0) + 1, NOTHING, list[int]()
            while (share := take(crew, stage, taking_part(crew), share)) >= 0:
                own.append(crew.thread)
                part.wait(60)
                took.extend(own)
            end_job(crew, job, stage, 0)

    assert kernel_threads() == []
    pool = WorkerPool(5, body, 2)
    assert len(kernel_threads()) == 2
    for threads, started in ((2, 2), (4, 4), (1, 4), (1, 4), (3, 4), (5, 5), (2, 5)):
        pool.use(threads)
        assert len(kernel_threads()) == started
        part = threading.Barrier(threads)
        took.clear()
        job = threading.Thread(target=pool.run, daemon=True)
        job.start()
        job.join(60)
        assert not job.is_alive()
        assert sorted(took) == list(range(threads))
    pool.close()
    assert kernel_threads() == []


def test_a_late_thread_may_find_that_it_rests() -> None:
    """And that the parts of a stage are others than when its job began."""
    state, (one, two, late) = crews(3)
    assert [take(one, 1, 6, before) for before in (NOTHING, 0, 1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4, 5, NOTHING]
    state[COMPLETE // 8] = stage_before(2, 0)  # job 1 is over
    set_resting(state.ctypes.data, 2)
    assert [take(thread, 2, 6, NOTHING) for thread in (two, late)] == [NOTHING, NOTHING]  # in job 1
    stage = stage_before(2, 0) + 1
    assert [take(one, stage, 6, before) for before in (NOTHING, 0, 1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4, 5, NOTHING]


def test_threads_are_pinned_to_the_cores_that_the_process_has_now() -> None:
    marks, faults = marks_and_faults(2)
    pool = WorkerPool(2, lambda crew: relay(crew, marks, faults))
    cores = own_cores()
    for used in range(1, min(2, len(cores)) + 1):
        for worker in kernel_threads():  # as the kernel does when a set of CPUs changes
            os.sched_setaffinity(worker.native_id or 0, cores)
        pool.use(used)
        allowed = [os.sched_getaffinity(worker.native_id or 0) for worker in kernel_threads()[:used]]
        assert allowed == [{core} for core in cores[:used]]
    pool.close()


def test_a_pool_that_gets_no_more_threads_goes_on_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    marks, faults = marks_and_faults(3)
    pool = WorkerPool(3, lambda crew: relay(crew, marks, faults), 1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.use(3)
    pool.run()
    assert not marks[1:].any()
    pool.use(3)
    for _ in range(JOBS - 1):
        pool.run()
    pool.close()
    assert (marks.sum(axis=0) == expected_marks(JOBS)).all()
    assert not faults.any()


def crews(count: int = 2) -> tuple[npt.NDArray[np.int64], list[Crew]]:
    state = np.zeros(state_bytes(count) // 8, np.int64)
    return state, [Crew(state.ctypes.data, thread, count) for thread in range(count)]


def test_a_part_goes_to_its_thread_first_and_then_to_who_waits() -> None:
    _state, (one, other) = crews()
    assert take(other, 1, 4, NOTHING) == 2
    assert [take(one, 1, 4, before) for before in (NOTHING, 0, 1)] == [0, 1, 3]  # 3 was the other's
    waiting = threading.Thread(target=take, args=(one, 1, 4, 3), daemon=True)  # until the other's share is done, too
    waiting.start()
    assert take(other, 1, 4, 2) == NOTHING
    waiting.join()


def test_what_a_late_thread_takes_does_not_count() -> None:
    """Of a stage that left it no part: the number of shares that it believes in may be another job's."""
    state, (one, late) = crews()
    assert take(one, 1, 1, NOTHING) == 0  # the part of `late`, as the first is empty
    assert take(one, 1, 1, 0) == NOTHING
    assert take(late, 1, 4, NOTHING) == NOTHING  # shares 2 and 3 would be its own
    assert state[COMPLETE // 8] == 1
    assert [take(one, 2, 4, before) for before in (NOTHING, 0, 1, 2, 3)] == [0, 1, 2, 3, NOTHING]
    assert take(late, 2, 4, NOTHING) == NOTHING
    assert take(late, 3, 4, NOTHING) == 2


@pytest.mark.parametrize("stage", [(1 << 47) - 2, (1 << 48) - 2])
def test_numbers_of_stages_may_overflow_their_bits(stage: int) -> None:
    state, (one, late) = crews()
    state[COMPLETE // 8] = stage - 1
    for part in (state[-16:-15], state[-8:-7]):
        part[0] = (stage - 1 & (1 << 48) - 1) << 16 if stage < 1 << 47 else -(1 << 16) * ((1 << 48) - stage + 1)
    for number in range(stage, stage + 5):
        assert [take(one, number, 4, before) for before in (NOTHING, 0, 1, 2, 3)] == [0, 1, 2, 3, NOTHING]
        assert take(late, number, 4, NOTHING) == NOTHING


def test_closing_ends_the_threads_and_is_idempotent() -> None:
    before = threading.active_count()
    marks, faults = marks_and_faults(2)
    pool = WorkerPool(2, lambda crew: relay(crew, marks, faults))
    assert threading.active_count() == before + 2
    pool.close()
    pool.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        pool.run()


def test_a_pool_is_idle_between_its_jobs() -> None:
    found: list[float] = []

    def body(crew: Crew) -> None:
        job = NO_JOB
        while (job := wait_for_job(crew, job)) > 0:
            stage, share = stage_before(job, 0) + 1, NOTHING
            while (share := take(crew, stage, 1, share)) >= 0:
                found.append(pool.idle_seconds())
            end_job(crew, job, stage, 0)

    pool = WorkerPool(1, body)
    assert pool.idle_seconds() == inf  # there was none
    pool.run()
    assert 0 <= pool.idle_seconds() < inf
    pool.run()
    pool.close()
    assert found == [-inf, -inf]


# A pool whose jobs have a share for each thread, which takes as long as `work` says.
POOL = """
import os, signal, sys, threading, time
from triolet.kernels.threads.cores import own_cores
from triolet.kernels.threads.pool import WorkerPool
from triolet.kernels.threads.shares import NOTHING, end_job, stage_before, take, wait_for_job
from triolet.kernels.threads.waiting import NO_JOB
def nothing():
    pass
work = nothing
def body(crew):
    job = NO_JOB
    while (job := wait_for_job(crew, job)) > 0:
        stage, share = stage_before(job, 0) + 1, NOTHING
        while (share := take(crew, stage, crew.threads, share)) >= 0:
            work()
        end_job(crew, job, stage, 0)
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
first = threading.Lock()
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
def work():
    if first.acquire(blocking=False):
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
    """Threads of several pools, pinned to the same cores, yield to each other when they wait."""
    made = [marks_and_faults(2) for _ in range(3)]
    pools = [WorkerPool(2, functools.partial(relay, marks=marks, faults=faults)) for marks, faults in made]
    callers = [threading.Thread(target=pool.run, daemon=True) for pool in pools]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for pool in pools:
        pool.close()
    for marks, faults in made:
        assert (marks.sum(axis=0) == expected_marks(1)).all()
        assert not faults.any()


def test_one_thread_of_every_core_comes_before_its_sibling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(pid: int) -> set[int]:
        return {0, 1, 2, 3, 5}

    monkeypatch.setattr("os.sched_getaffinity", allowed)
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    assert own_cores(tmp_path) == [0, 2, 5, 1, 3]
