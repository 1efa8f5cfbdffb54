"""From a checkpoint to a runner on the CPU: the refusals, the plan, the weights."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.weights import load_weights
from ..errors import UnsupportedDevice
from ..host import available_memory, usable_cores
from ..memory_plan import Plan, choose_num_blocks, context_length

if TYPE_CHECKING:
    from .cpu import CpuRunner

MAX_LOGIT_BYTES = 64 << 20  # working memory for logits; steps that want more rows run in parts
WeightFormat = Literal["float32", "bfloat16", "int8", "int4", "int4-128"]
CacheFormat = Literal["float32", "bfloat16", "int8"]
Progress = Callable[[str, int, int], None]  # stage, done, total


def load_on_cpu(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    quantize: str,
    kv_cache_dtype: str,
    block_size: int,
    max_model_len: int | None,
    max_running: int,
    max_step_tokens: int,
    kv_cache_memory: int | None,
    threads: int | None,
    on_progress: Progress,
) -> "tuple[CpuRunner, Plan, WeightFormat, CacheFormat]":
    """Every refusal is made before weights are read. dtype "auto" is the checkpoint's own."""
    weight_format = _weight_format(checkpoint.dtype if dtype == "auto" else dtype, quantize)
    cache_format = _cache_format(weight_format, kv_cache_dtype)
    plan = plan_memory(
        checkpoint,
        weight_format,
        cache_format=cache_format,
        block_size=block_size,
        max_model_len=max_model_len,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        kv_cache_memory=kv_cache_memory,
        threads=usable_cores() if threads is None else threads,
        available=available_memory(),
    )
    from ...kernels.sampling.compile_apart import SAMPLER

    SAMPLER.begin()
    weights = load_weights(checkpoint, checkpoint.spec, lambda done, total: on_progress("reading weights", done, total))
    from .cpu import CpuRunner

    def report_packed(stage: str, done: int, total: int) -> None:
        checkpoint.release_pages()  # so that a matrix is held twice, as read and as packed, only while it is packed
        on_progress(stage, done, total)

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
    return runner, plan, weight_format, cache_format


def plan_memory(
    checkpoint: Checkpoint,
    weight_format: WeightFormat,
    *,
    cache_format: CacheFormat | None = None,
    block_size: int,
    max_model_len: int | None,
    max_running: int,
    max_step_tokens: int,
    kv_cache_memory: int | None,
    threads: int,
    available: int,
) -> Plan:
    """Bytes for everything, from the checkpoint's headers alone."""
    from .memory import memory_plan

    spec = checkpoint.spec
    counts = {"max-running": max_running, "max-step-tokens": max_step_tokens, "threads": threads}
    length = context_length(spec.max_position, max_model_len, counts)
    rows = max(1, min(max_step_tokens, max(max_running, MAX_LOGIT_BYTES // (4 * spec.vocab_size))))
    needs = memory_plan(spec, weight_format, block_size, max_step_tokens, rows, length, threads, cache_format)
    blocks = choose_num_blocks(
        available=available,
        fixed_bytes=needs.weights_bytes + needs.workspace_bytes + checkpoint.widened_bytes,
        block_bytes=needs.kv_block_bytes,
        block_size=block_size,
        max_model_len=length,
        max_running=max_running,
        kv_cache_memory=kv_cache_memory,
    )
    return Plan(
        weights_bytes=needs.weights_bytes,
        workspace_bytes=needs.workspace_bytes,
        kv_bytes=blocks * needs.kv_block_bytes,
        num_blocks=blocks,
        block_size=block_size,
        max_model_len=length,
        max_step_tokens=max_step_tokens,
        max_logit_rows=rows,
        threads=threads,
        sequences_at_full_length=blocks / -(-length // block_size),
    )


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
