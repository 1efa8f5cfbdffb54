"""What runs a model: the interface of every runner, and the choice of one for a checkpoint and a machine.

The CPU's gives the same logits for a token whatever else is in its batch and however the prompt was cut into chunks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ..kernels.gpu.mode import interpret_kernels
from .checkpoint.checkpoint import Checkpoint
from .checkpoint.generation import GenerationDefaults
from .checkpoint.spec import ModelSpec
from .errors import UnsupportedDevice
from .host import has_nvidia_driver
from .memory_plan import Plan
from .steps.batch import Batch
from .steps.step import StepResult, StepWork

BLOCK_SIZE = 64  # tokens of a KV block, on every device
Progress = Callable[[str, int, int], None]  # stage, done, total


class Runner(Protocol):
    """One model on one device, with its KV cache. One thread calls it."""

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Write the batch's keys and values, return float32 logits [rows, vocab]: a view until the next forward."""
        ...

    def copy_blocks(self, sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]) -> None: ...

    def close(self) -> object:
        """Stop its threads. Idempotent."""
        ...


class Pending(Protocol):
    """A step that the device has been given."""

    def finish(self) -> StepResult:
        """Wait for its answer. Once, in the order of the steps, in any one thread."""
        ...


@runtime_checkable
class OverlappedRunner(Protocol):
    """A runner that keeps sequences and samples itself, so that a step can be launched before the last is read."""

    def begin(self, step: StepWork) -> Pending: ...

    def growth(self) -> tuple[int, int]:
        """Allocations of device memory and compilations since loading."""
        ...

    def close(self) -> object:
        """Wait for the device. Idempotent."""
        ...


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A runner and everything the worker reports about it."""

    runner: Runner | OverlappedRunner
    spec: ModelSpec
    plan: Plan
    name: str  # of the checkpoint folder
    device: str
    dtype: str
    quantize: str
    kv_cache_dtype: str
    generation: GenerationDefaults


def load_runner(
    path: Path,
    *,
    device: str = "auto",
    kernels: str = "compiled",
    dtype: str = "auto",
    quantize: str = "none",
    kv_cache_dtype: str = "auto",
    max_model_len: int | None = None,
    max_running: int = 64,
    max_step_tokens: int = 512,
    kv_cache_memory: int | None = None,
    gpu_memory: float | None = None,
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> LoadedModel:
    """Read the checkpoint, plan the memory, load and compile. Every refusal is a LoadError, made as early as can be.

    dtype "auto" is the checkpoint's own: bfloat16 stays, float32 and float16 run as float32. A GPU runs bfloat16.
    """
    report = on_progress or _ignore
    checkpoint = Checkpoint(path)
    if _takes_gpu(device, kernels):
        if kernels == "interpret":
            interpret_kernels()  # before anything imports Triton, as the next line does
        from .gpu.load import load_on_gpu, open_device

        gpu = open_device(kernels)
        stepper, plan = load_on_gpu(
            checkpoint,
            gpu,
            dtype=dtype,
            quantize=quantize,
            kv_cache_dtype=kv_cache_dtype,
            block_size=BLOCK_SIZE,
            max_model_len=max_model_len,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            gpu_memory=gpu_memory,
            kv_cache_memory=kv_cache_memory,
            on_progress=report,
        )
        return LoadedModel(
            runner=stepper,
            spec=checkpoint.spec,
            plan=plan,
            name=checkpoint.name,
            device=gpu.name,
            dtype="bfloat16",
            quantize=quantize,
            kv_cache_dtype="bfloat16" if kv_cache_dtype == "auto" else kv_cache_dtype,
            generation=checkpoint.generation,
        )
    from .cpu.load import load_on_cpu

    runner, plan, weight_format, cache_format = load_on_cpu(
        checkpoint,
        dtype=dtype,
        quantize=quantize,
        kv_cache_dtype=kv_cache_dtype,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        kv_cache_memory=kv_cache_memory,
        threads=threads,
        on_progress=report,
    )
    return LoadedModel(
        runner=runner,
        spec=checkpoint.spec,
        plan=plan,
        name=checkpoint.name,
        device="cpu",
        dtype="float32" if weight_format == "float32" else "bfloat16",
        quantize=quantize,
        kv_cache_dtype=cache_format,
        generation=checkpoint.generation,
    )


def _takes_gpu(device: str, kernels: str) -> bool:
    """`auto` takes a GPU that can be used; torch is imported to find out only where there is a driver."""
    if device == "cpu":
        if kernels != "compiled":
            raise UnsupportedDevice(f"--kernels {kernels}: these are the GPU's kernels; pass --device cuda with it")
        return False
    if kernels == "interpret":
        return True
    if device == "auto" and not has_nvidia_driver():
        return False
    from .gpu.load import gpu_problem

    problem = gpu_problem()
    if problem and device == "cuda":
        raise UnsupportedDevice(f"--device cuda: {problem}, or pass --device cpu")
    return not problem


def _ignore(stage: str, done: int, total: int) -> None:
    pass
