"""From a checkpoint to a stepper on a GPU, or on the rehearsal device: the refusals, the plan, the model."""

from __future__ import annotations

from collections.abc import Callable

from ...kernels.gemm.gpu_weights import GROUPS
from ...kernels.paged_attention.gpu_table import E4M3_CAPABILITY, choose_launch
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.weights import load_weights
from ..errors import DoesNotFit, UnsupportedDevice, UnsupportedModel
from ..memory_plan import Plan, context_length
from .buckets import Buckets
from .cache import DTYPES
from .device import Device
from .gpu import GpuModel
from .memory import plan_gpu_memory
from .stepper import GpuStepper

Progress = Callable[[str, int, int], None]  # stage, done, total
MAX_LOGIT_ROWS = 256  # of one pass; prompt log probabilities that want more run in parts


def open_device(kernels: str) -> Device:
    """The GPU; with `interpret` the rehearsal device, which needs none."""
    if kernels == "interpret":
        from .rehearsal import RehearsalDevice

        return RehearsalDevice()
    from .cuda import CudaDevice

    return CudaDevice()


def gpu_problem() -> str:
    """Why there is no GPU to use here; empty where there is one."""
    try:
        import torch
        import triton
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'triolet[cuda]'"
    del triton
    if not torch.cuda.is_available():
        return "torch sees no GPU: check `nvidia-smi` and that torch was built for CUDA"
    if torch.cuda.get_device_capability() < (8, 0):
        return "the GPU is older than compute capability 8.0 (Ampere)"
    return ""


def load_on_gpu(
    checkpoint: Checkpoint,
    device: Device,
    *,
    dtype: str,
    quantize: str,
    kv_cache_dtype: str = "auto",
    block_size: int,
    max_model_len: int | None,
    max_running: int,
    max_step_tokens: int,
    gpu_memory: float | int | None,
    kv_cache_memory: int | None,
    on_progress: Progress,
) -> tuple[GpuStepper, Plan]:
    """Every refusal is made before weights are read, but for memory that somebody else took meanwhile."""
    spec = checkpoint.spec
    if dtype not in ("auto", "bfloat16"):
        raise UnsupportedDevice(f"--dtype {dtype}: the GPU runs bfloat16; pass --dtype bfloat16")
    if quantize not in ("none", "int8", "int4", "fp8"):
        raise UnsupportedDevice(f"--quantize {quantize}: the GPU runs none, int8, int4 and fp8")
    if quantize == "fp8" and device.capability < E4M3_CAPABILITY:
        raise UnsupportedDevice(
            f"--quantize fp8: a GPU of compute capability {device.capability / 10} multiplies no float8; use int8 or "
            "int4 (--kv-cache-dtype fp8 does work here)"
        )
    if kv_cache_dtype == "auto":
        kv_cache_dtype = "bfloat16"
    if kv_cache_dtype not in DTYPES:
        raise UnsupportedDevice(f"--kv-cache-dtype {kv_cache_dtype}: the GPU has {', '.join(DTYPES)}")
    if max_step_tokens == 1:
        raise UnsupportedDevice("--max-step-tokens 1: a step on the GPU takes at least 2 tokens; raise it")
    for name, size in (("hidden_size", spec.hidden_size), ("intermediate_size", spec.mlp_size)):
        if quantize == "int4" and size % min(GROUPS):
            raise UnsupportedModel(name, size, f"int4 weights come in groups of {min(GROUPS)}; use --quantize int8")
    counts = {"max-running": max_running, "max-step-tokens": max_step_tokens}
    length = context_length(spec.max_position, max_model_len, counts)
    try:
        choose_launch(
            device.capability, spec.head_dim, DTYPES[kv_cache_dtype].itemsize, 1, 1,
            multiprocessors=device.multiprocessors,
        )  # fmt: skip
    except ValueError as error:
        raise UnsupportedModel("head_dim", spec.head_dim, f"{error}; run this model on the CPU") from error
    rows = min(max_step_tokens, max(max_running, MAX_LOGIT_ROWS))
    buckets = Buckets(max_tokens=max_step_tokens, max_chunks=max_running, max_rows=rows)
    plan = plan_gpu_memory(
        device,
        spec,
        quantize=quantize,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        max_model_len=length,
        buckets=buckets,
        gpu_memory=gpu_memory,
        kv_cache_memory=kv_cache_memory,
    )
    weights = load_weights(checkpoint, spec, lambda done, total: on_progress("reading weights", done, total))
    try:
        model = GpuModel(
            device,
            spec,
            weights,
            quantize=quantize,
            kv_cache_dtype=kv_cache_dtype,
            num_blocks=plan.num_blocks,
            block_size=block_size,
            max_model_len=length,
            buckets=buckets,
            on_progress=on_progress,
        )
    except RuntimeError as error:  # torch's, Triton's and the driver's own errors have no other class in common
        if "out of memory" not in str(error):
            raise
        raise DoesNotFit(f"the GPU's memory ran out while loading: lower --gpu-memory ({error})") from error
    return GpuStepper(model), plan
