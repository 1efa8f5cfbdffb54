"""The threads in which a model is loaded and its steps run. No event loop: a job goes in by a queue, answers by a call.

One thread loads and runs every step: a runner's threads, pinned cores and device state belong to the thread that made
them. Steps wait for it in a queue, so the next one starts at once; at most the steps in flight are ever there. A device
with a time of its own gets a second thread: a step is launched in the first and waited for in the second, so that the
next one is launched while the device still computes. Answers come in the order of the steps either way.

Not trio's pool: each further thread that calls a numerical library may start another pool of its own.
"""

import gc
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from ...protocol.steps import FromWorker, LoadFailed, LoadProgress, Ready, Step, StepDone, StepFailed

_LOG: Final = logging.getLogger("triolet.executor")
Progress = Callable[[LoadProgress], None]
Answer = Callable[[], StepDone]  # waits for a step that was launched; not called in the step thread
Deliver = Callable[[FromWorker], None]


class ExecutorCore(Protocol):
    """What the step thread calls, and nobody else."""

    def load(self, progress: Progress) -> Ready | LoadFailed: ...

    def run(self, step: Step) -> StepDone | Answer:
        """Run a step to its end, or launch it and say how to wait for it."""
        ...

    def close(self) -> None: ...


class _Worker:
    """A thread that runs one job after another."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def forget_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()

    def close(self, *, wait: bool) -> None:
        """The jobs submitted so far are the last ones."""
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class StepThreads:
    """Loads at once. `deliver` gets progress, then Ready or LoadFailed, then one answer per step.

    It is called in these threads and must not wait long. The first step that raises is answered with StepFailed, and
    that is the last answer: what the step left behind in the model is unknown.
    """

    def __init__(self, core: ExecutorCore, deliver: Deliver) -> None:
        self._core = core
        self._deliver = deliver
        self._loaded = self._broken = False
        self._steps, self._answers = _Worker("triolet-step"), _Worker("triolet-wait")
        self._steps.submit(self._load)

    def submit(self, step: Step) -> None:
        """Run a step after those before it."""
        self._steps.submit(partial(self._run, step))

    def forget_waiting(self) -> None:
        """The step that runs is the last one."""
        self._steps.forget_waiting()

    def end(self) -> None:
        """Wait for the steps submitted, close the core: no memory is freed under a kernel.

        A load that is half-way may take long and owns nothing that anyone waits for: it is left to itself.
        """
        loaded = self._loaded
        self._steps.close(wait=loaded)
        self._answers.close(wait=loaded)  # what was launched is waited for: the device is not left with our memory
        if loaded:
            self._core.close()

    def _load(self) -> None:
        try:
            answer = self._core.load(self._deliver)
            # Hundreds of thousands of objects that stay: searching them for garbage would hold up a step for 50 ms.
            gc.freeze()
        except Exception as error:  # whatever a checkpoint or a compiler can raise must reach the front as a sentence
            _LOG.exception("loading failed")
            message = f"{type(error).__name__} while loading the model: {error}"
            answer = LoadFailed(code="internal_error", message=message)
        self._loaded = isinstance(answer, Ready)
        self._deliver(answer)

    def _run(self, step: Step) -> None:
        if self._broken:
            return
        try:
            answer = self._core.run(step)
            if isinstance(answer, StepDone):
                self._deliver(answer)
            else:
                self._answers.submit(partial(self._wait, step, answer))
        except Exception as error:
            self._fail(step, error)

    def _wait(self, step: Step, answer: Answer) -> None:
        """Also after a failure: the step thread may be waiting for what this step holds."""
        try:
            done = answer()
            if not self._broken:
                self._deliver(done)
        except Exception as error:
            self._fail(step, error)

    def _fail(self, step: Step, error: Exception) -> None:
        """An error of one step is a message, and the end of this executor."""
        if self._broken:
            return
        _LOG.error("step %d failed", step.step, exc_info=error)
        self._broken = True
        self._deliver(StepFailed(step=step.step, message=f"{type(error).__name__}: {error}"))
