"""The memory plan of a GPU, made before anything is allocated, and how large its steps are where nobody said.

Sizes come from the layouts that are allocated later, so they are exact. Only the driver's memory for graphs (by number
of launches) and for cuBLAS is guessed; where the KV cache takes what is left, its size follows a measurement (gpu.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ...protocol.settings import BLOCK_SIZE, MIB, EngineSettings, LargestStep
from ...protocol.steps import MemoryPlan
from ..checkpoint.spec import ModelSpec
from ..errors import DoesNotFit, UnsupportedDevice
from ..memory_plan import GIB, blocks_in, plan_of, size
from .adapters import place_layout
from .buckets import GpuSizes
from .cache import cache_layout
from .device import Device
from .experts import more_launches_of_experts
from .gpu import buffer_layout
from .linear import float_type, linear_launches
from .packet import packet_layout
from .weights import formats_of, weights_layout
from .working_memory import more_launches

SHARE = 0.9  # of the free memory, by default: other processes and the driver need some
LAUNCH_BYTES = 24 << 10  # per launch in a captured graph; a generous guess, used before there is anything to measure
# Launches in a pass besides the products: of a layer, of its adapters, and outside the layers. What a structure has
# more is added to them (working_memory.py, experts.py).
LAYER_LAUNCHES, ADAPTER_LAUNCHES, OTHER_LAUNCHES = 7, 8, 16
LIBRARY_BYTES = 64 * MIB  # cuBLAS's workspace on Hopper is 32 MiB per stream, and its handle takes the same
LARGEST_CACHE_ROWS = 2**31 - 1  # attention counts rows of the cache, [blocks * kv_heads * BLOCK_SIZE], in int32
# Steps for what this worker may take of the GPU's memory, the largest first. From 256 rows on, products are bound by
# arithmetic (206 operations a byte on an H200), so more rows add little. 2,048 tokens of an 8B model take an H200 33 ms
# at its peak and an A100 105: running answers wait for it, and a larger one would hardly be faster. GPUs with less
# memory compute a half to a quarter as fast as an A100.
STEPS = (
    (32 * GIB, LargestStep(max_running=256, max_step_tokens=2048)),
    (16 * GIB, LargestStep(max_running=128, max_step_tokens=1024)),
)
# Of what the weights and a KV cache of a given size leave: the most that such a step's buffers and graphs may take.
STEP_SHARE = 0.25


def largest_step(
    device: Device, spec: ModelSpec, settings: EngineSettings, sizes_for: Callable[[LargestStep], GpuSizes]
) -> LargestStep:
    """The settings' own; what they leave open, by the memory of the device and what is left of it."""
    budget = _budget(*device.free_memory(), settings.gpu_memory)
    for least, of_device in STEPS:
        step = settings.largest_step(of_device)
        if budget >= least:
            sizes = sizes_for(step)
            left = budget - weights_layout(spec, sizes.quantize, sizes.stored).size - (settings.kv_cache_memory or 0)
            if _workspace_bytes(device, spec, sizes) <= STEP_SHARE * left:
                return step
    return settings.largest_step()


def plan_on_gpu(
    device: Device,
    spec: ModelSpec,
    sizes: GpuSizes,
    gpu_memory: float | None = None,
    kv_cache_memory: int | None = None,
    shortest: int | None = None,
    memory: tuple[int, int] | None = None,
    graphs: int | None = None,
) -> MemoryPlan:
    """Weights, working buffers, graphs, and the rest for KV. `gpu_memory` limits this worker: a share of the device up
    to 1, or bytes. The blocks hold one sequence of full length, or at least one of `shortest` tokens if that is given.
    `memory`: free and in total before anything was allocated, `graphs`: bytes that were measured; else it is the
    device's now, and they are guessed.
    """
    shortest = shortest or sizes.max_model_len
    budget = _budget(*(memory or device.free_memory()), gpu_memory)
    weights = weights_layout(spec, sizes.quantize, sizes.stored).size
    workspace = _workspace_bytes(device, spec, sizes, graphs)
    block_bytes = cache_layout(spec, 1, sizes.kv_cache_dtype).size
    rest, most = budget - weights - workspace, LARGEST_CACHE_ROWS // (spec.num_kv_heads * BLOCK_SIZE)
    other = "buffers, graphs and LoRA adapters (--max-loras)" if sizes.adapters.count else "buffers and graphs"
    left = f"left of {size(budget)} after {size(weights)} for weights and {size(workspace)} for {other}"
    if kv_cache_memory is None:
        blocks = min(max(0, rest) // block_bytes, most)
        if blocks < (least := -(-shortest // BLOCK_SIZE)):
            raise DoesNotFit(
                f"one sequence of {shortest} tokens needs {size(least * block_bytes)} of KV "
                f"cache, but {size(rest)} are {left}: raise --gpu-memory, or lower --max-model-len, --max-running or "
                "--max-step-tokens"
            )
    else:
        blocks = min(blocks_in(kv_cache_memory, rest, left, block_bytes, shortest), most)
    length = min(sizes.max_model_len, blocks * BLOCK_SIZE)
    return plan_of(blocks, block_bytes, length, weights=weights, workspace=workspace)


def _workspace_bytes(device: Device, spec: ModelSpec, sizes: GpuSizes, graphs: int | None = None) -> int:
    """Buffers, graphs and adapters."""
    workspace = buffer_layout(device, spec, sizes).size + packet_layout(sizes, spec.vocab_size).size
    workspace += graph_bytes(spec, sizes, device.capability) if graphs is None else graphs
    if sizes.adapters.count:  # place_layout knows no matrices of latent attention, which takes none
        workspace += sizes.adapters.count * place_layout(spec, sizes.adapters, float_type(sizes.quantize)).size
    return workspace


def graph_bytes(spec: ModelSpec, sizes: GpuSizes, capability: int) -> int:
    """What the driver is guessed to take for graphs, kernels and cuBLAS."""
    buckets, formats = sizes.buckets, formats_of(spec, sizes.quantize, sizes.stored)
    layers = Counter(matrix for name, matrix in formats.items() if name != "head")
    of_layer, other = more_launches(spec)
    launches = (OTHER_LAUNCHES + other) * buckets.graph_count
    for strict, adapted in buckets.kinds:
        for tokens in (*buckets.decode, *buckets.tokens):
            products = sum(
                count * linear_launches(*matrix, tokens, capability, strict=strict) for matrix, count in layers.items()
            )
            launches += products + spec.num_layers * (LAYER_LAUNCHES + of_layer + ADAPTER_LAUNCHES * adapted)
            if spec.experts is not None:
                more = more_launches_of_experts(spec.experts, sizes.quantize)
                launches += more * sum(layer.experts for layer in spec.layers)
    return LAUNCH_BYTES * launches + LIBRARY_BYTES


def _budget(free: int, total: int, gpu_memory: float | None) -> int:
    if gpu_memory is None:
        return int(free * SHARE)
    wanted = int(gpu_memory * total) if gpu_memory <= 1 else int(gpu_memory)
    if wanted < 1:
        raise UnsupportedDevice(f"--gpu-memory {gpu_memory}: give a share such as 0.9, or a size such as 20GiB")
    if wanted > free:
        raise DoesNotFit(
            f"--gpu-memory {size(wanted)}: only {size(free)} of the GPU's {size(total)} are free; lower it"
        )
    return wanted
