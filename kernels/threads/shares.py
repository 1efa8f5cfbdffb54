"""How the threads of a pool share a job: stage by stage, each cut into shares that any of them may take.

A stage ends when its shares are done, not when all threads have arrived. So a thread that has lost its core holds the
others up only if it lost it within a share, or while it counted one. They do the rest of its work, end the job without
it, and begin the next one. When it runs again it finds that all of this is over, and goes on to the job at hand. In the
same way a slower core gets less to do.

Each thread has a part of a stage's shares, the same in every job of as many rows, as its caches may still hold their
weights. It helps with others' parts only after waiting for a moment: if all threads run, they need no help.

Stages are numbered over all jobs. A late thread may still claim a share of a stage that is long complete, going by
numbers that it read from another job's batch. So it looks after the claim whether its stage is complete, and the claim
holds only if not: then its job has not ended, and all that it has read belongs to this job. Outside a share a thread
may read anything, but may write only to memory of its own.

In the state: the last stage that is complete; how many shares of the next one are done; and a line for each thread,
with the stage and next share of its part, in one word, and how many shares it did since it last told.
"""

from __future__ import annotations

from typing import NamedTuple

from ..compile_cache import compiled
from .atomics import (
    FUTEX_WAIT_PRIVATE,
    atomic_add,
    atomic_get,
    atomic_set,
    atomic_swap,
    futex,
    pause,
    peek,
    poke,
    sched_yield,
)
from .waiting import LINE, RESTING, WAITING_BYTES, tell_done, wait_for_start

COMPLETE, COUNT = WAITING_BYTES, WAITING_BYTES + LINE
PARTS = WAITING_BYTES + 2 * LINE
HELD = 8  # in a thread's line, behind its part's word
SHARE_BITS = 16  # of that word; the others are the stage's: if no job ever waited, they would suffice for years
MOST_SHARES = 1 << (SHARE_BITS - 1)
NOTHING = -1
WHOLE = 1  # the number of shares of a stage that one thread does alone
STAGES = 32  # numbers for the stages of a layer, and for those outside: more than there are
SPINS_BEFORE_HELPING = 50  # pauses: 0.6 us on a Zen 4, 2 us on CPUs whose pauses are longer
# Spinning without end would cost a whole scheduler slice (8 ms measured) when the partner has lost its core.
SPINS_BEFORE_YIELD = 2000


class Crew(NamedTuple):
    """A thread of a pool, as its stages know it."""

    state: int
    thread: int
    threads: int


def state_bytes(threads: int) -> int:
    return PARTS + threads * LINE


@compiled
def taking_part(crew: Crew) -> int:
    """How many of the pool's threads do the shares of this job: those with the lowest numbers.

    Like all that a job goes by, it changes between jobs: to a thread that is late it may be another job's.
    """
    return crew.threads - peek(crew.state + RESTING)


@compiled
def wait_for_job(crew: Crew, job: int) -> int:
    """Sleep until a job after number `job` was started in which this thread takes part; its number, or CLOSING.

    It may skip jobs that the others have finished.
    """
    while True:
        job = wait_for_start(crew.state, job)
        resting = atomic_get(crew.state + RESTING)  # after the job's number: this job's, or a later one's
        if job < 0 or crew.thread < crew.threads - resting:
            return job
        futex(crew.state + RESTING, FUTEX_WAIT_PRIVATE, resting)


@compiled
def stage_before(job: int, layers: int) -> int:
    """The number before that of a job's first stage. The job after it begins behind all its stages."""
    return job * (layers + 1) * STAGES


@compiled
def take(crew: Crew, stage: int, shares: int, before: int) -> int:
    """The next share, from 0 to shares - 1, or NOTHING: the stage is complete.

    `before`: what the last call for this stage gave, which is done now; NOTHING in the first call for a stage.
    Every thread calls it for all stages of a job, in their order, until NOTHING. A stage has 1 to MOST_SHARES shares.
    """
    own, threads = crew.state + PARTS + crew.thread * LINE, taking_part(crew)
    if before >= 0:
        poke(own + HELD, peek(own + HELD) + 1)
    share = _take_from(crew, crew.thread, threads, stage, shares)
    if share >= 0:
        return share
    _tell(crew, own + HELD, stage, shares)
    first, last = shares * crew.thread // threads, shares * (crew.thread + 1) // threads
    helping = before >= 0 and not first <= before < last
    spins = SPINS_BEFORE_HELPING - 1 if helping else 0
    while atomic_get(crew.state + COMPLETE) < stage:
        spins += 1
        if spins == SPINS_BEFORE_HELPING:
            for distance in range(1, threads):
                if atomic_get(crew.state + COMPLETE) >= stage:
                    break
                share = _take_from(crew, (crew.thread + distance) % threads, threads, stage, shares)
                if share >= 0:
                    return share
        if spins < SPINS_BEFORE_YIELD:
            pause()
        else:
            sched_yield()
    return NOTHING


@compiled
def _take_from(crew: Crew, owner: int, threads: int, stage: int, shares: int) -> int:
    """The next share of a thread's part, if it has one left."""
    part = crew.state + PARTS + owner * LINE
    first, last = shares * owner // threads, shares * (owner + 1) // threads
    while True:
        word = atomic_get(part)
        ahead = ((word >> SHARE_BITS) - stage) << SHARE_BITS  # its sign is right after an overflow, too
        share = first if ahead < 0 else word & ((1 << SHARE_BITS) - 1)
        if ahead > 0 or share >= last:
            return NOTHING
        if atomic_swap(part, word, (stage << SHARE_BITS) | (share + 1)):
            return share if atomic_get(crew.state + COMPLETE) < stage else NOTHING


@compiled
def _tell(crew: Crew, held: int, stage: int, shares: int) -> None:
    """Count what this thread has done. The last one completes the stage."""
    count = peek(held)
    if count > 0:
        poke(held, 0)
        if atomic_add(crew.state + COUNT, count) + count == shares:
            atomic_set(crew.state + COUNT, 0)
            atomic_set(crew.state + COMPLETE, stage)


@compiled
def end_job(crew: Crew, job: int, stage: int, layers: int) -> None:
    """Call it after the job's last stage. The first to do so ends the job and wakes the caller; others find it over."""
    if atomic_swap(crew.state + COMPLETE, stage, stage_before(job + 1, layers)):
        tell_done(crew.state, job)


@compiled
def is_over(crew: Crew, job: int, layers: int) -> int:
    """Whether the others have ended this job, so that what is left of it is for nothing."""
    return int(atomic_get(crew.state + COMPLETE) >= stage_before(job + 1, layers))


@compiled
def shares_of(units: int, crew: Crew) -> int:
    """Four for each thread that takes part, but no more than there are units."""
    return min(units, 4 * taking_part(crew))
