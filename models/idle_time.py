"""Runs a long computation so that nobody waits for its core: from its start in a thread that goes on in idle time.

A thread of low priority still gets its share of a busy core, in slices of some milliseconds, and whoever computes there
stops for one. On Linux a thread of the class SCHED_IDLE makes way at once, and gets next to nothing while others
compute. A thread may not leave that class again, so every job has a thread of its own. A short job ends before.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

Result = TypeVar("Result")
AT_ONCE: Final = 0.02  # seconds, in which a job has its usual priority; nearly all grammars take a few milliseconds


def in_idle_time(job: Callable[[], Result], *, stack: int) -> Result:
    """What the job returns or raises; it has a stack of so many bytes. After `AT_ONCE` it gets idle time alone."""
    ends: queue.SimpleQueue[tuple[Result, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ends.put((job(), None))
        except BaseException as error:
            ends.put((None, error))

    thread = _started(run, stack)
    try:
        result, error = ends.get(timeout=AT_ONCE)
    except queue.Empty:
        _demote(thread)
        result, error = ends.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # there is no error, so there is a result


def _started(run: Callable[[], None], stack: int) -> threading.Thread:
    """A daemon: the process may exit in the middle of it."""
    thread = threading.Thread(target=run, name="triolet-idle-time", daemon=True)
    usual = threading.stack_size(stack)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)
    return thread


def _demote(thread: threading.Thread) -> None:
    """Elsewhere than on Linux it keeps its priority, and so where the system forbids this. It may have ended."""
    if sys.platform == "linux" and thread.native_id is not None:
        with suppress(OSError):
            os.sched_setscheduler(thread.native_id, os.SCHED_IDLE, os.sched_param(0))
