"""SIGUSR2: where this process is, written to a file even if its event loop is stuck.

`faulthandler` writes the stacks of all threads in the signal's handler itself, in C, so whatever Python does cannot
prevent it. A thread sees the file grow and adds the tree of tasks, as soon as it gets the GIL. `triolet doctor --pid`
finds the file among those that the process has open, and empties it before it asks.
"""

import faulthandler
import logging
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

import trio

from .flight_file import make_room, open_own
from .task_tree import task_tree

SUFFIX: Final = ".stacks"
TASKS: Final = "\nTasks:"
END: Final = "end of tasks\n"
_LOOK_SECONDS: Final = 0.25
_LOG: Final = logging.getLogger("triolet.flight")


@contextmanager
def stacks_on_signal(folder: Path) -> Generator[Path | None]:
    """Heed SIGUSR2 in the block, which is in a trio task; the file, or None where the folder cannot be used."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # also behind the block: a late question ends nothing
    file = folder / f"{time.time_ns()}-{os.getpid()}{SUFFIX}"  # containers that share a folder have the same numbers
    try:
        make_room(folder)
        number = open_own(file, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        _LOG.warning("SIGUSR2 will not show where this process is: %s", error)
        yield None
        return
    ended, root = Event(), trio.lowlevel.current_root_task()
    assert root is not None, "trio runs"

    def watch() -> None:
        """Add the tree once the handler has written all: whatever does not end with a tree needs one."""
        size = 0
        while not ended.wait(_LOOK_SECONDS):
            before, size = size, os.fstat(number).st_size
            if size and size == before and os.pread(number, len(END), max(0, size - len(END))) != END.encode():
                try:
                    lines = task_tree(root)
                except Exception as error:  # it changes while it is read
                    lines = [f"the tasks cannot be read: {error!r}"]
                with suppress(OSError):  # the disk is full
                    os.write(number, "\n".join((TASKS, *lines, END)).encode())

    thread = Thread(target=watch, name="stack file", daemon=True)
    faulthandler.register(signal.SIGUSR2, number, all_threads=True, chain=False)
    thread.start()
    try:
        yield file
    finally:
        faulthandler.unregister(signal.SIGUSR2)
        ended.set()
        thread.join()
        os.close(number)
        file.unlink(missing_ok=True)
