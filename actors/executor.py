"""The executor: steps in, answers out, the model in a thread of its own, waiting in another.

One dedicated thread loads the model and runs every step: a runner's threads, pinned cores and device state belong to
the thread that made them. Steps wait for it in a queue, so the next one starts without a turn of the event loop; at
most the steps in flight are ever there. Cancelling waits for the step that is running, so no KV block is freed under a
kernel. The same code runs in the worker process and, with `--inline`, in the front.

A GPU has its own time: there a step is launched in the step thread and waited for in a second one, so that the next
step is launched while the device still computes. Answers come in the order of the steps either way.

Here the messages of the link become the models' own vocabulary and back. Nothing heavy is imported before `load`.
"""

import gc
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from os import getpid
from pathlib import Path
from platform import python_version
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ..protocol.events import TokenLogprob, TopLogprob
from ..protocol.settings import EngineSettings
from ..protocol.steps import (
    FromWorker,
    LoadFailed,
    LoadProgress,
    MemoryPlan,
    Ready,
    Row,
    Step,
    StepDone,
    StepFailed,
)
from .ledger import peak_resident_bytes
from .step_thread import StepThread

if TYPE_CHECKING:
    from ..models.runner import LoadedModel, OverlappedRunner
    from ..models.step import ChunkResult, StepResult, TokenScore
    from ..models.stepper import Stepper

_LOG: Final = logging.getLogger("triolet.executor")
Progress = Callable[[LoadProgress], None]
Answer = Callable[[], StepDone]  # waits for a step that was launched; not called in the step thread
_VERSIONED = ("triolet", "numpy", "numba", "llvmlite")
_VERSIONED_GPU = ("triolet", "numpy", "torch", "triton")


class ExecutorCore(Protocol):
    """What the step thread calls, and nobody else."""

    def load(self, progress: Progress) -> Ready | LoadFailed: ...

    def run(self, step: Step) -> "StepDone | Answer":
        """Run a step to its end, or launch it and say how to wait for it."""
        ...

    def close(self) -> None: ...


class ModelCore:
    """The real core: a runner, the worker's sequences and the sampler."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._model: LoadedModel | None = None
        self._run: Callable[[Step], StepDone | Answer] | None = None

    def load(self, progress: Progress) -> Ready | LoadFailed:
        """Load the model; what the person at the command line can mend comes back as a sentence."""
        from ..models.errors import LoadError
        from ..models.runner import OverlappedRunner, load_runner

        settings = self._settings
        try:
            model = load_runner(
                Path(settings.model),
                device=settings.device,
                kernels=settings.kernels,
                dtype=settings.dtype,
                quantize=settings.quantize,
                kv_cache_dtype=settings.kv_cache_dtype,
                max_model_len=settings.max_model_len,
                max_running=settings.max_running,
                max_step_tokens=settings.max_step_tokens,
                kv_cache_memory=settings.kv_cache_memory,
                gpu_memory=settings.gpu_memory,
                threads=settings.threads,
                on_progress=lambda stage, done, total: progress(LoadProgress(stage=stage, done=done, total=total)),
            )
        except LoadError as error:
            return LoadFailed(code=error.code, message=str(error))
        except MemoryError:
            message = "memory ran out while loading; lower --max-model-len, --max-running or --kv-cache-memory"
            return LoadFailed(code="out_of_memory", message=message)
        self._model = model
        if isinstance(model.runner, OverlappedRunner):
            self._run = partial(_launch, model.runner)
            return _ready(model, settings, _VERSIONED_GPU)
        from ..models.stepper import Stepper

        progress(LoadProgress(stage="loading sampler", done=0, total=1))
        self._run = partial(_compute, Stepper.of(model))
        progress(LoadProgress(stage="loading sampler", done=1, total=1))
        return _ready(model, settings, _VERSIONED)

    def run(self, step: Step) -> StepDone | Answer:
        assert self._run is not None, "a step before load"
        return self._run(step)

    def close(self) -> None:
        if self._model is not None:
            self._model.runner.close()


def _compute(stepper: "Stepper", step: Step) -> StepDone:
    began = perf_counter()
    return _done(step, stepper.run(step), began)


def _launch(runner: "OverlappedRunner", step: Step) -> Answer:
    began = perf_counter()
    pending = runner.begin(step)
    return lambda: _done(step, pending.finish(), began, *runner.growth())


def _done(step: Step, result: "StepResult", began: float, allocations: int = 0, compilations: int = 0) -> StepDone:
    return StepDone(
        step=step.step,
        rows=tuple(_row(chunk) for chunk in result.chunks),
        duration=perf_counter() - began,
        model_duration=result.model_seconds,
        device_allocations=allocations,
        device_compilations=compilations,
    )


def _ready(model: "LoadedModel", settings: EngineSettings, versioned: tuple[str, ...]) -> Ready:
    plan = model.plan
    return Ready(
        model=model.name,
        architecture=model.spec.family,
        parameters=model.spec.parameters,
        device=model.device,
        dtype=model.dtype,
        quantize=model.quantize,
        kv_cache_dtype=model.kv_cache_dtype,
        context_length=plan.max_model_len,
        vocab_size=model.spec.vocab_size,
        eos_token_ids=model.generation.eos_token_ids,
        max_step_tokens=plan.max_step_tokens,
        max_running=settings.max_running,
        memory=MemoryPlan(
            weights_bytes=plan.weights_bytes,
            workspace_bytes=plan.workspace_bytes,
            kv_bytes=plan.kv_bytes,
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            sequences_at_full_length=plan.sequences_at_full_length,
        ),
        sampling_defaults=model.generation.sampling,
        versions={"python": python_version()} | {name: _version(name) for name in versioned},
        pid=getpid(),
        peak_bytes=peak_resident_bytes("self"),
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # some builds of torch carry Triton under another name
        return "unknown"


def _row(chunk: "ChunkResult") -> Row:
    return Row(
        sequence=chunk.sequence,
        tokens=chunk.tokens,
        logprobs=tuple(map(_logprob, chunk.logprobs)),
        prompt_logprobs=tuple(map(_logprob, chunk.prompt_logprobs)),
        error=chunk.error,
    )


def _logprob(score: "TokenScore") -> TokenLogprob:
    top = tuple(TopLogprob(token, logprob) for token, logprob in score.top)
    return TokenLogprob(token_id=score.token, logprob=score.logprob, top=top)


async def run_executor(
    steps: trio.MemoryReceiveChannel[Step],
    done: trio.MemorySendChannel[FromWorker],
    *,
    core: ExecutorCore,
) -> None:
    """Load, then run every step. `done` carries progress, then Ready or LoadFailed, then one answer per step.

    `done` is unbounded by its maker: a few progress messages, and one answer per step in flight. The first step that
    raises ends the executor, because what it left behind in the model is unknown.
    """
    failed = trio.Event()
    loaded = False

    def deliver(message: FromWorker) -> None:
        nonlocal loaded
        if isinstance(message, Ready):
            loaded = True
        elif isinstance(message, LoadFailed | StepFailed):
            failed.set()
        try:
            done.send_nowait(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            failed.set()  # nobody listens any more

    def load() -> None:
        try:
            thread.report(core.load(thread.report))
            # Hundreds of thousands of objects that stay: searching them for garbage would hold up a step for 50 ms.
            gc.freeze()
        except Exception as error:  # whatever a checkpoint or a compiler can raise must reach the front as a sentence
            _LOG.exception("loading failed")
            message = f"{type(error).__name__} while loading the model: {error}"
            thread.report(LoadFailed(code="internal_error", message=message))

    def run(step: Step) -> None:
        if broken:
            return
        with failing(step):
            answer = core.run(step)
            if isinstance(answer, StepDone):
                thread.report(answer)
            else:
                waiting.submit(partial(wait, step, answer))

    def wait(step: Step, answer: Answer) -> None:
        """Also after a failure: the step thread may be waiting for what this step holds."""
        with failing(step):
            done = answer()
            if not broken:
                waiting.report(done)

    @contextmanager
    def failing(step: Step) -> Generator[None]:
        try:
            yield
        except Exception as error:  # an error of one step is a message, and the end of this executor
            if broken:
                return
            _LOG.exception("step %d failed", step.step)
            broken.append(step)
            thread.report(StepFailed(step=step.step, message=f"{type(error).__name__}: {error}"))

    broken: list[Step] = []
    with steps, done:
        thread, waiting = StepThread(deliver, "triolet-step"), StepThread(deliver, "triolet-wait")
        try:
            thread.submit(load)
            async with trio.open_nursery() as nursery:

                async def feed() -> None:
                    async for step in steps:
                        thread.submit(partial(run, step))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(feed)
                await failed.wait()
                nursery.cancel_scope.cancel()
        finally:
            thread.forget_waiting()
            if loaded:  # a load that was cancelled half-way may take long and owns nothing that anyone waits for
                await thread.join()
            waiting.close()  # what was launched is waited for: the device is not left with our memory
            if loaded:
                await waiting.join()
                core.close()
