"""What runs a model: the interface of every runner, and the choice of one for a checkpoint and a machine.

The CPU's gives the same logits for a token whatever else is in its batch and however the prompt was cut into chunks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ..kernels.gpu.mode import interpret_kernels
from .batch import Batch
from .checkpoint import Checkpoint
from .errors import UnsupportedDevice
from .generation import GenerationDefaults
from .host import available_memory, has_nvidia_driver, usable_cores
from .plan import Plan, choose_num_blocks, context_length
from .spec import ModelSpec
from .step import StepResult, StepWork
from .weights import load_weights

BLOCK_SIZE = 64  # tokens of a KV block, on every device
MAX_LOGIT_BYTES = 64 << 20  # working memory for logits; steps that want more rows run in parts
WeightFormat = Literal["float32", "bfloat16", "int8", "int4", "int4-128"]
CacheFormat = Literal["float32", "bfloat16", "int8"]
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
        from .gpu_load import load_on_gpu, open_device

        gpu = open_device(kernels)
        stepper, plan = load_on_gpu(
            checkpoint,
            gpu,
            dtype=dtype,
            quantize=quantize,
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
    if dtype == "auto":
        dtype = checkpoint.dtype
    weight_format = _weight_format(dtype, quantize)
    cache_format = _cache_format(weight_format, kv_cache_dtype)
    plan = plan_memory(
        checkpoint,
        weight_format,
        cache_format=cache_format,
        max_model_len=max_model_len,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        kv_cache_memory=kv_cache_memory,
        threads=usable_cores() if threads is None else threads,
        available=available_memory(),
    )
    from ..kernels.sampling.compile_apart import SAMPLER

    SAMPLER.begin()
    weights = load_weights(checkpoint, checkpoint.spec, lambda done, total: report("reading weights", done, total))
    from .cpu_runner import CpuRunner

    def report_packed(stage: str, done: int, total: int) -> None:
        checkpoint.release_pages()  # so that a matrix is held twice, as read and as packed, only while it is packed
        report(stage, done, total)

    runner = CpuRunner(
        checkpoint.spec,
        weights,
        weight_format=weight_format,
        cache_format=cache_format,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        max_step_tokens=plan.max_step_tokens,
        max_logit_rows=plan.max_logit_rows,
        max_model_len=plan.max_model_len,
        threads=plan.threads,
        on_progress=report_packed,
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


def plan_memory(
    checkpoint: Checkpoint,
    weight_format: WeightFormat,
    *,
    cache_format: CacheFormat | None = None,
    max_model_len: int | None,
    max_running: int,
    max_step_tokens: int,
    kv_cache_memory: int | None,
    threads: int,
    available: int,
) -> Plan:
    """Bytes for everything, from the checkpoint's headers alone."""
    from .cpu_memory import memory_plan

    spec = checkpoint.spec
    counts = {"max-running": max_running, "max-step-tokens": max_step_tokens, "threads": threads}
    length = context_length(spec.max_position, max_model_len, counts)
    rows = max(1, min(max_step_tokens, max(max_running, MAX_LOGIT_BYTES // (4 * spec.vocab_size))))
    needs = memory_plan(spec, weight_format, BLOCK_SIZE, max_step_tokens, rows, length, threads, cache_format)
    blocks = choose_num_blocks(
        available=available,
        fixed_bytes=needs.weights_bytes + needs.workspace_bytes + checkpoint.widened_bytes,
        block_bytes=needs.kv_block_bytes,
        block_size=BLOCK_SIZE,
        max_model_len=length,
        max_running=max_running,
        kv_cache_memory=kv_cache_memory,
    )
    return Plan(
        weights_bytes=needs.weights_bytes,
        workspace_bytes=needs.workspace_bytes,
        kv_bytes=blocks * needs.kv_block_bytes,
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        max_model_len=length,
        max_step_tokens=max_step_tokens,
        max_logit_rows=rows,
        threads=threads,
        sequences_at_full_length=blocks / -(-length // BLOCK_SIZE),
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
    from .gpu_load import gpu_problem

    problem = gpu_problem()
    if problem and device == "cuda":
        raise UnsupportedDevice(f"--device cuda: {problem}, or pass --device cpu")
    return not problem


def _weight_format(dtype: str, quantize: str) -> WeightFormat:
    match quantize, dtype:
        case "none", "float32" | "bfloat16":
            return dtype
        case "int8" | "int4" | "int4-128", "float32" | "bfloat16":
            return quantize
        case "none", _:
            raise UnsupportedDevice(f"--dtype {dtype}: the CPU runs bfloat16 and float32")
        case _:
            raise UnsupportedDevice(f"--quantize {quantize}: the CPU runs none, int8, int4 and int4-128")


def _cache_format(weight_format: WeightFormat, kv_cache_dtype: str) -> CacheFormat:
    """auto is float32 beside float32 weights, else bfloat16."""
    match kv_cache_dtype, weight_format:
        case "int8", _:
            return "int8"
        case "auto", "float32":
            return "float32"
        case "auto", _:
            return "bfloat16"
        case "bfloat16", "float32":
            raise UnsupportedDevice("--kv-cache-dtype bfloat16 beside float32 weights: leave it at auto, or pass int8")
        case "bfloat16", _:
            return "bfloat16"
        case _:
            raise UnsupportedDevice(f"--kv-cache-dtype {kv_cache_dtype}: the CPU has bfloat16 and int8")


def _ignore(stage: str, done: int, total: int) -> None:
    pass
