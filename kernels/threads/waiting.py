"""How a pool's caller and its threads wait for each other between jobs: with a futex.

The state is one cache line each: the number of the last job that was started, of the last one that is done, threads
that sleep, whether the pool closes, how many threads take no part in jobs, the last ones. What the threads share within
a job comes behind it (shares.py).

An idle pool that spins slows everything else on the machine down 2 to 3 times, hence the futex.
"""

from __future__ import annotations

from ..compile_cache import compiled
from .atomics import FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, atomic_add, atomic_get, atomic_set, futex, pause

LINE = 64
STARTED, DONE, ASLEEP, STOP, RESTING = (LINE * number for number in range(5))
WAITING_BYTES = 5 * LINE
SPINS_BEFORE_SLEEP = 5000  # pauses of about 40 cycles each
NO_JOB = 0  # the number before the first job's
CLOSING = -1
EVERYBODY = 1 << 20


@compiled
def wait_for_start(state: int, job: int) -> int:
    """Worker: sleep until a job after number `job` was started; its number, or CLOSING."""
    spins = 0
    while atomic_get(state + STARTED) == job and atomic_get(state + STOP) == 0:
        spins += 1
        if spins < SPINS_BEFORE_SLEEP:
            pause()
        else:
            atomic_add(state + ASLEEP, 1)
            if atomic_get(state + STARTED) == job and atomic_get(state + STOP) == 0:
                futex(state + STARTED, FUTEX_WAIT_PRIVATE, job & 0xFFFFFFFF)
            atomic_add(state + ASLEEP, -1)
    started = atomic_get(state + STARTED)  # before STOP: closing sets that first, and then moves this
    return CLOSING if atomic_get(state + STOP) != 0 else started


@compiled
def tell_done(state: int, job: int) -> None:
    """Worker: the one that ends a job wakes the caller."""
    atomic_set(state + DONE, job)
    futex(state + DONE, FUTEX_WAKE_PRIVATE, 1)


@compiled
def run_job(state: int, threads: int) -> None:
    """Caller: start the next job on all workers and sleep until it is done. One caller at a time."""
    job = atomic_add(state + STARTED, 1) + 1
    if threads == 0:
        atomic_set(state + DONE, job)
    if atomic_get(state + ASLEEP) > 0:
        futex(state + STARTED, FUTEX_WAKE_PRIVATE, EVERYBODY)
    while True:
        done = atomic_get(state + DONE)
        if done >= job:
            return
        futex(state + DONE, FUTEX_WAIT_PRIVATE, done & 0xFFFFFFFF)


@compiled
def set_resting(state: int, resting: int) -> None:
    """Caller: so many threads, the last ones, take no part in the jobs from now on. Not while a job runs."""
    atomic_set(state + RESTING, resting)
    futex(state + RESTING, FUTEX_WAKE_PRIVATE, EVERYBODY)


@compiled
def stop_workers(state: int) -> None:
    """Caller: let every worker return from its wait. The job counter moves too, which ends every futex wait."""
    atomic_set(state + STOP, 1)
    atomic_add(state + STARTED, 1)
    futex(state + STARTED, FUTEX_WAKE_PRIVATE, EVERYBODY)
    set_resting(state, 0)
