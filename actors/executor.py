"""The executor: steps in, answers out, the model in a thread of its own.

One dedicated thread loads the model and runs every step: a runner's threads, pinned cores and device state belong to
the thread that made them. Steps wait for it in a queue, so the next one starts without a turn of the event loop; at
most the steps in flight are ever there. Cancelling waits for the step that is running, so no KV block is freed under a
kernel. The same code runs in the worker process and, with `--inline`, in the front.

Here the messages of the link become the models' own vocabulary and back. Nothing heavy is imported before `load`.
"""

import logging
from collections.abc import Callable
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
from .step_thread import StepThread

if TYPE_CHECKING:
    from ..models.runner import LoadedModel
    from ..models.step import ChunkResult, TokenScore
    from ..models.stepper import Stepper

_LOG: Final = logging.getLogger("triolet.executor")
Progress = Callable[[LoadProgress], None]
_VERSIONED = ("triolet", "numpy", "numba", "llvmlite")


class ExecutorCore(Protocol):
    """What the step thread calls, and nobody else."""

    def load(self, progress: Progress) -> Ready | LoadFailed: ...
    def run(self, step: Step) -> StepDone: ...
    def close(self) -> None: ...


class ModelCore:
    """The real core: a runner, the worker's sequences and the sampler."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._model: LoadedModel | None = None
        self._stepper: Stepper | None = None

    def load(self, progress: Progress) -> Ready | LoadFailed:
        """Load the model; what the person at the command line can mend comes back as a sentence."""
        from ..models.errors import LoadError
        from ..models.runner import load_runner
        from ..models.stepper import Stepper

        settings = self._settings
        try:
            model = load_runner(
                Path(settings.model),
                device=settings.device,
                dtype=settings.dtype,
                quantize=settings.quantize,
                max_model_len=settings.max_model_len,
                max_running=settings.max_running,
                max_step_tokens=settings.max_step_tokens,
                kv_cache_memory=settings.kv_cache_memory,
                threads=settings.threads,
                on_progress=lambda stage, done, total: progress(LoadProgress(stage=stage, done=done, total=total)),
            )
        except LoadError as error:
            return LoadFailed(code=error.code, message=str(error))
        except MemoryError:
            message = "memory ran out while loading; lower --max-model-len, --max-running or --kv-cache-memory"
            return LoadFailed(code="out_of_memory", message=message)
        progress(LoadProgress(stage="compiling sampler", done=0, total=1))
        self._model, self._stepper = model, Stepper.of(model)
        progress(LoadProgress(stage="compiling sampler", done=1, total=1))
        return _ready(model, settings)

    def run(self, step: Step) -> StepDone:
        assert self._stepper is not None, "a step before load"
        began = perf_counter()
        result = self._stepper.run(step)
        rows = tuple(_row(chunk) for chunk in result.chunks)
        return StepDone(
            step=step.step, rows=rows, duration=perf_counter() - began, model_duration=result.model_seconds
        )

    def close(self) -> None:
        if self._model is not None:
            self._model.runner.close()


def _ready(model: "LoadedModel", settings: EngineSettings) -> Ready:
    plan = model.plan
    return Ready(
        model=model.name,
        architecture=model.spec.family,
        parameters=model.spec.parameters,
        device=model.device,
        dtype=model.dtype,
        quantize=model.quantize,
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
        versions={"python": python_version()} | {name: metadata.version(name) for name in _VERSIONED},
        pid=getpid(),
    )


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
        except Exception as error:  # whatever a checkpoint or a compiler can raise must reach the front as a sentence
            _LOG.exception("loading failed")
            message = f"{type(error).__name__} while loading the model: {error}"
            thread.report(LoadFailed(code="internal_error", message=message))

    def run(step: Step) -> None:
        if broken:
            return
        try:
            thread.report(core.run(step))
        except Exception as error:  # an error of one step is a message, and the end of this executor
            _LOG.exception("step %d failed", step.step)
            broken.append(step)
            thread.report(StepFailed(step=step.step, message=f"{type(error).__name__}: {error}"))

    broken: list[Step] = []
    with steps, done:
        thread = StepThread(deliver)
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
                core.close()
