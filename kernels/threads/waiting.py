"""How the threads of a pool wait for each other: with a spin barrier within a job, with a futex between jobs.

The state is five cache lines: +0 jobs started, +64 workers done (over all jobs), +128 arrivals at barriers (over all
jobs), +192 workers asleep, +256 stop. All counters only grow, so no value is reset while a thread reads it.

Spinning without end would cost a whole scheduler slice (8 ms measured) whenever the partner has lost its core, hence
sched_yield after a while. And an idle pool that spins slows everything else on the machine down 2 to 3 times, hence the
futex.
"""

from __future__ import annotations

from ..compile_cache import compiled
from .atomics import (
    FUTEX_WAIT_PRIVATE,
    FUTEX_WAKE_PRIVATE,
    atomic_add,
    atomic_get,
    atomic_set,
    futex,
    pause,
    sched_yield,
)

STATE_BYTES = 5 * 64
DONE, BARRIER, ASLEEP, STOP = 64, 128, 192, 256
SPINS_BEFORE_YIELD = 2000  # pauses of about 40 cycles each: 30 us
SPINS_BEFORE_SLEEP = 5000
NONE_YET = 0  # jobs that a worker has done, and barriers that it has passed, when it begins
EVERYBODY = 1 << 20


@compiled
def barrier(state: int, threads: int, generation: int) -> int:
    """Wait for all threads; each passes the number of barriers it has passed and gets the next number."""
    atomic_add(state + BARRIER, 1)
    wanted = (generation + 1) * threads
    spins = 0
    while atomic_get(state + BARRIER) < wanted:
        spins += 1
        if spins < SPINS_BEFORE_YIELD:
            pause()
        else:
            sched_yield()
    return generation + 1


@compiled
def wait_for_job(state: int, done: int) -> bool:
    """Worker: sleep until more jobs were started than `done`. False when the pool is closing."""
    spins = 0
    while atomic_get(state) == done and atomic_get(state + STOP) == 0:
        spins += 1
        if spins < SPINS_BEFORE_SLEEP:
            pause()
        else:
            atomic_add(state + ASLEEP, 1)
            if atomic_get(state) == done and atomic_get(state + STOP) == 0:
                futex(state, FUTEX_WAIT_PRIVATE, done & 0xFFFFFFFF)
            atomic_add(state + ASLEEP, -1)
    return atomic_get(state + STOP) == 0


@compiled
def finish_job(state: int, threads: int, job: int) -> None:
    """Worker: the last one to finish job number `job` wakes the caller."""
    if atomic_add(state + DONE, 1) + 1 == job * threads:
        futex(state + DONE, FUTEX_WAKE_PRIVATE, 1)


@compiled
def run_job(state: int, threads: int) -> None:
    """Caller: start the next job on all workers and sleep until it is done. One caller at a time."""
    job = atomic_add(state, 1) + 1
    if atomic_get(state + ASLEEP) > 0:
        futex(state, FUTEX_WAKE_PRIVATE, EVERYBODY)
    while True:
        done = atomic_get(state + DONE)
        if done >= job * threads:
            return
        futex(state + DONE, FUTEX_WAIT_PRIVATE, done & 0xFFFFFFFF)


@compiled
def stop_workers(state: int) -> None:
    """Caller: let every worker return from wait_for_job. The job counter moves too, which ends every futex wait."""
    atomic_set(state + STOP, 1)
    atomic_add(state, 1)
    futex(state, FUTEX_WAKE_PRIVATE, EVERYBODY)
