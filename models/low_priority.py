"""Runs a computation in a thread of its own, whose priority is low.

On Linux each thread has its own niceness. With 10 a thread gets a tenth of a core on which somebody else computes. The
class SCHED_IDLE would disturb the others less, but a thread in it gets next to nothing on a busy machine. A request
that waits for its grammar would wait for ever, and a step for the GIL, which such a thread holds between two calls:
1.4 s, measured beside two busy programs on two cores. A thread may not raise its priority again, so every job has a
new one.
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


def run_beside(work: Callable[[], object], name: str) -> None:
    """Return at once; the work gets what cores the others leave, and ends with the process."""

    def run() -> None:
        _demote(threading.current_thread())
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
    """Elsewhere than on Linux it keeps its priority, and so where the system forbids this. It may have ended."""
    if sys.platform == "linux" and thread.native_id is not None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.native_id, NICENESS)  # of that thread alone
