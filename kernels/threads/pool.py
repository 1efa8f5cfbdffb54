"""A pool of Python threads that stay in one compiled function and run a whole model step as one job.

Each worker is pinned to its own core as long as there are enough. A futex wakes an unpinned worker on the waker's core,
which they then share for about 2 ms. During a job the calling thread sleeps, with the GIL released. The threads are
daemons, so that the interpreter can exit at any time.

How many take part may change between jobs. A thread is started when it first does; those that rest sleep, and no job
wakes them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

import numpy as np

from .cores import own_cores
from .shares import COMPLETE, Crew, state_bytes
from .waiting import run_job, set_resting, stop_workers

Body = Callable[[Crew], None]  # returns when the pool closes


class WorkerPool:
    """`body` loops on wait_for_job, and takes shares of every job. Compile it first, or the first job waits for that.

    A pool of no threads runs nothing: each job is finished at once.
    """

    def __init__(self, threads: int, body: Body, first_threads: int | None = None) -> None:
        """`threads`: the most; `first_threads`: those of the first jobs, None: all."""
        self.threads = threads
        self._memory = np.zeros(state_bytes(threads) + 64, np.uint8)
        self.state = -(-self._memory.ctypes.data // 64) * 64
        complete = self.state - self._memory.ctypes.data + COMPLETE
        self._complete = self._memory[complete : complete + 8].view(np.int64)
        self._closed = False
        self._ended = -inf  # when the last job did, by time.monotonic(); inf: one runs
        self._process = os.getpid()
        self._body = body
        self._workers: list[threading.Thread] = []
        self.use(threads if first_threads is None else first_threads)

    def use(self, threads: int) -> None:
        """So many take part in the jobs from now on, on the cores that the process may use now. Not while a job runs.

        Raises RuntimeError if the system allows no more threads; then as many as before take part.
        """
        for thread in range(len(self._workers), threads):
            crew, name = Crew(state=self.state, thread=thread, threads=self.threads), f"triolet-kernel-{thread}"
            worker = threading.Thread(target=self._body, args=(crew,), name=name, daemon=True)
            worker.start()
            self._workers.append(worker)
        if threads <= len(cores := own_cores()):
            for worker, core in zip(self._workers, cores[:threads], strict=False):
                assert worker.native_id is not None
                with suppress(OSError):  # the process has just lost this core
                    os.sched_setaffinity(worker.native_id, {core})
        set_resting(self.state, self.threads - threads)

    def run(self) -> None:
        """Run one job; returns when it is done, which a worker without a core does not delay."""
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        if os.getpid() != self._process:
            raise RuntimeError("the worker pool belongs to the parent process: a fork copies no threads")
        self._ended = inf
        try:
            run_job(self.state, self.threads)
        finally:  # an interrupt comes when the job has ended
            self._ended = time.monotonic()

    def idle_seconds(self) -> float:
        """How long no job has run; at most 0 while one does. Any thread may ask."""
        return time.monotonic() - self._ended

    def progress(self) -> int:
        """Grows with every stage that is complete, over all jobs. Any thread may ask."""
        return int(self._complete[0])

    def close(self) -> None:
        """Stop and join the workers. Idempotent; not while a job runs."""
        if not self._closed:
            self._closed = True
            stop_workers(self.state)
            for worker in self._workers:
                worker.join()
            del self._body  # and what it keeps alive
