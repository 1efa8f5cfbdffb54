"""Looks again, while the server runs, how many threads the CPUs of this process are enough for.

A container's quota (Kubernetes resizes a running pod) and its set of CPUs may change. With more threads than the quota
allows, the kernel stops all of them for most of its period, in the middle of a step. So a stepper asks between two
steps, at most once a second: a system call and the files of the process's control groups, 0.1 to 0.5 ms.
"""

import logging
import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final, Protocol

from ..host import CGROUP, CPUS, PROC, cpu_quota, usable_cores

LOOK_SECONDS: Final = 1.0
_LOG: Final = logging.getLogger("triolet.threads")


class ThreadCounts(Protocol):
    """CpuSizes, EncoderSizes."""

    @property
    def threads(self) -> int: ...
    @property
    def first_threads(self) -> int | None: ...


class AllowedCores:
    """One thread asks."""

    def __init__(self, most: int, first: int, cpus: Path = CPUS, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        """`most`: threads that the runner has memory for; `first`: that it uses now."""
        self._most, self._threads = most, first
        self._cpus, self._proc, self._cgroup = cpus, proc, cgroup
        self._looked = -inf
        self._seen: tuple[set[int], int | None] | None = None

    def follow(self, now: float, use: Callable[[int], None]) -> None:
        """Say how many threads to use if anything has changed: also if other CPUs are as many."""
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        seen = os.sched_getaffinity(0), cpu_quota(self._proc, self._cgroup)
        if seen == self._seen:
            return
        self._seen = seen
        threads = min(self._most, usable_cores(self._cpus, self._proc, self._cgroup))
        try:
            use(threads)
        except RuntimeError as error:  # as in a control group with few processes left
            _LOG.warning("steps go on with %d threads; %d were allowed: %s", self._threads, threads, error)
            return
        if threads != self._threads:
            _LOG.info("the CPU quota or the set of CPUs has changed: steps use %d of %d threads", threads, self._most)
            self._threads = threads


def followed_cores(sizes: ThreadCounts) -> AllowedCores | None:
    """None: the number of threads was given."""
    return None if sizes.first_threads is None else AllowedCores(sizes.threads, sizes.first_threads)
