"""A pool of Python threads that stay in one compiled function and run a whole model step as one job.

Each worker is pinned to its own core as long as there are enough. A futex wakes an unpinned worker on the waker's core,
which they then share for about 2 ms. During a job the calling thread sleeps, with the GIL released. The threads are
daemons, so that the interpreter can exit at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from math import inf

import numpy as np

from .cores import own_cores
from .shares import COMPLETE, Crew, state_bytes
from .waiting import run_job, stop_workers

Body = Callable[[Crew], None]  # returns when the pool closes


class WorkerPool:
    """`body` loops on wait_for_job, and takes shares of every job. Compile it first, or the first job waits for that.

    A pool of no threads runs nothing: each job is finished at once.
    """

    def __init__(self, threads: int, body: Body) -> None:
        self.threads = threads
        self._memory = np.zeros(state_bytes(threads) + 64, np.uint8)
        self.state = -(-self._memory.ctypes.data // 64) * 64
        complete = self.state - self._memory.ctypes.data + COMPLETE
        self._complete = self._memory[complete : complete + 8].view(np.int64)
        self._closed = False
        self._ended = -inf  # when the last job did, by time.monotonic(); inf: one runs
        self._process = os.getpid()
        cores = own_cores()
        state = self.state  # so that the threads do not keep the pool alive

        def live(thread: int) -> None:
            if threads <= len(cores):
                os.sched_setaffinity(0, {cores[thread]})
            body(Crew(state=state, thread=thread, threads=threads))

        self._workers = [
            threading.Thread(target=live, args=(thread,), name=f"triolet-kernel-{thread}", daemon=True)
            for thread in range(threads)
        ]
        for worker in self._workers:
            worker.start()

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
