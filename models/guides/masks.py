"""MaskThread: fills the masks of guided sequences while the model computes.

The step thread asks for the masks of a step right before its forward pass, and waits for them before it samples. A mask
takes a microsecond to some milliseconds, and releases the GIL.
"""

import queue
import threading
from collections.abc import Iterable

from .guide import Guide


class MaskThread:
    """One thread calls it; the other one is started on first use."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[list[Guide]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._under_way = 0  # jobs
        self._thread: threading.Thread | None = None

    def begin(self, guides: Iterable[Guide]) -> None:
        """Fill the masks that are not filled. Nothing else may use these guides until `wait` returns."""
        wanted = [guide for guide in guides if not guide.ready]
        if not wanted:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._fill_all, name="triolet-masks", daemon=True)
            self._thread.start()
        for guide in wanted:
            guide.ready = True  # as far as the next call of `begin` is concerned
        self._under_way += 1
        self._jobs.put(wanted)

    def wait(self) -> None:
        """Wait until all masks that were asked for are filled."""
        while self._under_way:
            error = self._ends.get()
            self._under_way -= 1
            if error is not None:
                raise error

    def _fill_all(self) -> None:
        while True:
            try:
                for guide in self._jobs.get():
                    guide.fill()
            except BaseException as error:
                self._ends.put(error)
            else:
                self._ends.put(None)
