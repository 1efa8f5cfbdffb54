"""A thread of its own for blocking work, one job after another; what a job reports reaches the event loop in order.

Not trio's pool: device state and kernel threads belong to the thread that made them, and each further thread that calls
a numerical library may start another pool of its own. A queue in and `run_sync_soon` out cost 27 µs there and back.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import trio

from ..protocol.steps import FromWorker


class StepThread:
    """The thread and its queue."""

    def __init__(self, deliver: Callable[[FromWorker], None], name: str) -> None:
        self._deliver = deliver
        self._token = trio.lowlevel.current_trio_token()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def report(self, message: FromWorker) -> None:
        """From the thread: hand a message over. A loop that has ended needs no messages."""
        try:
            self._token.run_sync_soon(self._deliver, message)
        except trio.RunFinishedError:
            self._jobs.put(None)

    def forget_waiting(self) -> None:
        """The running job is the last one."""
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)

    def close(self) -> None:
        """The jobs submitted so far are the last ones."""
        self._jobs.put(None)

    async def join(self) -> None:
        """Wait for the running job, whatever happens: its kernels write into memory that is about to be freed."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
