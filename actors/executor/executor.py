"""The executor's core: the model behind the messages of the link, for the threads of step_thread.py.

Here the messages of the link become the models' own vocabulary and back. The same code runs in the worker process and,
with `--inline`, in the front. Nothing heavy is imported before `load`.
"""

from collections.abc import Callable
from functools import partial
from importlib import metadata
from os import getpid
from pathlib import Path
from platform import python_version
from time import perf_counter
from typing import TYPE_CHECKING

from ...protocol.events import TokenLogprob, TopLogprob
from ...protocol.settings import EngineSettings
from ...protocol.steps import LoadFailed, LoadProgress, MemoryPlan, Ready, Row, Step, StepDone
from ..observe.ledger import peak_resident_bytes
from .step_thread import Answer, Progress

if TYPE_CHECKING:
    from ...models.load import LoadedModel, OverlappedRunner
    from ...models.steps.step import ChunkResult, StepResult, TokenScore
    from ...models.steps.steps import Stepper

_VERSIONED = ("triolet", "numpy", "numba", "llvmlite")
_VERSIONED_GPU = ("triolet", "numpy", "torch", "triton")


class ModelCore:
    """The real core: a runner, the worker's sequences and the sampler."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._model: LoadedModel | None = None
        self._run: Callable[[Step], StepDone | Answer] | None = None

    def load(self, progress: Progress) -> Ready | LoadFailed:
        """Load the model; what the person at the command line can mend comes back as a sentence."""
        from ...models.errors import LoadError
        from ...models.load import OverlappedRunner, load_runner

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
        from ...models.steps.steps import Stepper

        progress(LoadProgress(stage="loading sampler", done=0, total=1))
        self._run = partial(_compute, Stepper.of(model, settings.threads))
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
        rows=tuple([_row(chunk) for chunk in result.chunks]),
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
    if not (chunk.logprobs or chunk.prompt_logprobs or chunk.error):
        return Row(sequence=chunk.sequence, tokens=chunk.tokens)
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
