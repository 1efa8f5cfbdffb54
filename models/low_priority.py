"""Runs a computation in a thread of its own, whose priority is low.

On Linux each thread has its own niceness. With 10 a thread gets a tenth of a core on which somebody else computes. The
class SCHED_IDLE disturbs the others less, but a thread in it gets next to nothing on a busy machine, and a request that
waits for its grammar would wait for ever: it is for work that nobody waits for. A thread may not raise its priority
again, so every job has a new one, whose priority is lowered if it takes long.
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
NICENESS: Final = 10
LOWEST: Final = 19
STARTING: Final = threading.Lock()  # the size of a stack is set for the process: two at once would leave theirs behind


def at_low_priority(job: Callable[[], Result], *, stack: int = 0) -> Result:
    """What the job returns or raises; `stack`: its bytes, 0: the usual. After `AT_ONCE` its priority is low."""
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


def run_when_idle(work: Callable[[], object], name: str) -> None:
    """Return at once; the work is done while the cores have nothing else to do, and ends with the process."""

    def run() -> None:
        if sys.platform == "linux":
            try:
                os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
            except OSError:  # a sandbox may forbid it
                _renice(threading.get_native_id(), LOWEST)
        work()

    threading.Thread(target=run, name=name, daemon=True).start()


def _started(run: Callable[[], None], stack: int) -> threading.Thread:
    """A daemon: the process may exit in the middle of it."""
    thread = threading.Thread(target=run, name="triolet-low-priority", daemon=True)
    with STARTING:
        usual = threading.stack_size(stack)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread


def _demote(thread: threading.Thread) -> None:
    """Elsewhere than on Linux it keeps its priority. It may have ended."""
    if sys.platform == "linux" and thread.native_id is not None:
        _renice(thread.native_id, NICENESS)


def _renice(thread: int, niceness: int) -> None:
    """Of that thread alone, unless the system forbids it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
