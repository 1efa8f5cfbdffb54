"""The threads that load a model and run its steps. There is no event loop: jobs are queued, answers are calls.

One thread loads the model and runs every step: kernel threads, pinned cores and device state belong to the thread that
made them. Steps wait in a queue, so the next one starts at once; the queue holds at most the steps in flight. A GPU
runs asynchronously, so it gets a second thread: the first launches steps, the second waits for them. So the next step
is launched while the device still computes. Answers are always delivered in the order of the steps. A third thread
reads LoRA adapters, which takes up to seconds; the first one adds what it has read, between two steps.

trio's thread pool is not used: every thread that calls a numerical library may start another pool of that library.
The same code runs in the worker process and, with `--inline`, in the front. Nothing heavy is imported at the top.
"""

import gc
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

from msgspec.structs import replace

from ...models.errors import LoadError
from ...models.low_priority import at_low_priority
from ...models.stepper import PendingStep, Stepper
from ...protocol.settings import EngineSettings
from ...protocol.steps import (
    AdapterFailed,
    AdapterReady,
    ForgetAdapters,
    FromWorker,
    GrammarFailed,
    LoadFailed,
    Preparation,
    PrepareAdapter,
    PrepareGrammar,
    Ready,
    ReportProgress,
    Step,
    StepFailed,
)
from ..supervisor.process_facts import peak_resident_bytes

_LOG: Final = logging.getLogger("triolet.executor")
Deliver = Callable[[FromWorker], None]
Load = Callable[[ReportProgress], tuple[Stepper, Ready]]


def load_from(settings: EngineSettings, report: ReportProgress) -> tuple[Stepper, Ready]:
    """Load the model that the settings name."""
    from ...models.load import load_model

    stepper, ready = load_model(settings, report)
    return stepper, replace(ready, peak_bytes=peak_resident_bytes("self"))


class _JobThread:
    """A thread that runs one job after another."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def forget_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()

    def close(self, *, wait: bool) -> None:
        """Accept no further jobs."""
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class StepThreads:
    """Starts loading at once. `deliver` gets progress, then Ready or LoadFailed, then one answer per step.

    `deliver` is called in these threads and must not wait long. The first step that raises is answered with StepFailed,
    the last answer: the model's state after it is unknown. Any other order that raises costs its own requests at most.
    A panic in Rust is no Exception and counts as well: it would end the thread, and all that wait would wait for ever.
    """

    def __init__(self, load: Load, deliver: Deliver) -> None:
        self._deliver = deliver
        self._stepper: Stepper | None = None  # once the model is loaded
        self._broken = False
        self._reading = set[int]()  # adapters that were ordered, not yet added and not forgotten; the step thread's
        self._steps, self._answers = _JobThread("triolet-step"), _JobThread("triolet-wait")
        self._readings = _JobThread("triolet-adapter")
        self._steps.submit(partial(self._load, load))

    def progress(self) -> int:
        """The stepper's, for any thread."""
        return 0 if self._stepper is None else self._stepper.progress()

    def submit(self, step: Step) -> None:
        """Run a step after those before it."""
        self._steps.submit(partial(self._begin, step))

    def prepare(self, order: Preparation) -> None:
        """Have a grammar built or an adapter read beside the steps; forget adapters between them.

        In the steps' order: those before may need what it forgets.
        """
        self._steps.submit(partial(self._prepare, order))

    def forget_waiting(self) -> None:
        """Drop the steps that have not started, and adapters."""
        self._readings.forget_waiting()
        self._steps.forget_waiting()

    def end(self) -> None:
        """Wait for the submitted steps, then close the stepper: no memory is freed while a kernel uses it.

        Does not wait for a load that is still running: it may take long, and nothing depends on it.
        """
        stepper = self._stepper
        self._readings.close(wait=stepper is not None)
        self._steps.close(wait=stepper is not None)
        self._answers.close(wait=stepper is not None)  # the device may still use our memory until then
        if stepper is not None:
            stepper.close()

    def _load(self, load: Load) -> None:
        """Deliver Ready, or LoadFailed with a sentence for the person at the command line."""
        answer: Ready | LoadFailed
        try:
            self._stepper, answer = load(self._deliver)
            # There are hundreds of thousands of permanent objects: a garbage collection would delay a step for 50 ms.
            gc.freeze()
        except LoadError as error:
            answer = LoadFailed(code=error.code, message=str(error))
        except MemoryError:
            message = "memory ran out while loading the weights or making room for the KV cache: pass --quantize int8 "
            message += "or int4, take a smaller model, or lower --kv-cache-memory, --max-model-len or --max-running"
            answer = LoadFailed(code="out_of_memory", message=message)
        except BaseException as error:  # anything a checkpoint or a compiler can raise
            _LOG.exception("loading failed")
            message = f"{type(error).__name__} while loading the model: {error}"
            answer = LoadFailed(code="internal_error", message=message)
        self._deliver(answer)

    def _prepare(self, order: Preparation) -> None:
        if self._broken:
            return
        try:
            assert self._stepper is not None, "a grammar or an adapter before the model is loaded"
            match order:
                case PrepareGrammar():
                    self._stepper.prepare_grammar(order, self._deliver)
                case PrepareAdapter():
                    self._reading.add(order.adapter)
                    self._readings.submit(partial(self._read, self._stepper, order))
                case ForgetAdapters(adapters=numbers):
                    self._reading.difference_update(numbers)
                    for number in numbers:
                        self._stepper.forget_adapter(number)
                case _:
                    assert_never(order)
        except BaseException as error:
            self._refuse(order, error)

    def _read(self, stepper: Stepper, order: PrepareAdapter) -> None:
        """In the adapters' thread. Steps go on, and are before it where they need the core."""
        try:
            add = at_low_priority(partial(stepper.read_adapter, order.adapter, order.path))
        except BaseException as error:
            self._refuse(order, error)
        else:
            self._steps.submit(partial(self._add, order, add))

    def _add(self, order: PrepareAdapter, add: Callable[[], None]) -> None:
        if self._broken or order.adapter not in self._reading:
            return
        self._reading.remove(order.adapter)
        try:
            add()
        except BaseException as error:
            self._refuse(order, error)
        else:
            self._deliver(AdapterReady(adapter=order.adapter))

    def _refuse(self, order: Preparation, error: BaseException) -> None:
        """Answer an order that raised, as a damaged file can make it: the model itself is as it was."""
        if self._broken:
            return
        message = str(error)
        if not isinstance(error, LoadError):
            _LOG.error("%s failed", order, exc_info=error)
            message = f"{type(error).__name__}: {error}"
        match order:
            case PrepareGrammar():
                self._deliver(GrammarFailed(grammar=order.grammar, message=message))
            case PrepareAdapter():
                self._deliver(AdapterFailed(adapter=order.adapter, message=message))
            case ForgetAdapters():
                pass  # it keeps its memory
            case _:
                assert_never(order)

    def _begin(self, step: Step) -> None:
        if self._broken:
            return
        try:
            assert self._stepper is not None, "a step before the model is loaded"
            pending = self._stepper.begin_step(step)
        except BaseException as error:
            self._fail(step, error)
            return
        if pending.computed:
            self._answer(step, pending)
        else:
            self._answers.submit(partial(self._answer, step, pending))

    def _answer(self, step: Step, pending: PendingStep) -> None:
        """Wait even after a failure: the step thread may be blocked until this step frees its buffers."""
        try:
            done = pending.wait()
            if not self._broken:
                self._deliver(done)
        except BaseException as error:
            self._fail(step, error)

    def _fail(self, step: Step, error: BaseException) -> None:
        """Answer with the error; it is the last answer."""
        if self._broken:
            return
        _LOG.error("step %d failed", step.step, exc_info=error)
        self._broken = True
        self._deliver(StepFailed(step=step.step, message=f"{type(error).__name__}: {error}"))
