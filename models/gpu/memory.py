"""The memory plan of a GPU: weights, working buffers, graphs, and all the rest for KV, before anything is allocated.

Sizes come from the layouts that are allocated later, so they are exact; only what the driver takes for graphs, by
their launches, and for cuBLAS is an estimate.
"""

from __future__ import annotations

from ..checkpoint.spec import ModelSpec
from ..errors import DoesNotFit, UnsupportedDevice
from ..memory_plan import MIB, Plan, size
from .buckets import Buckets
from .cache import cache_layout
from .device import Device
from .gpu import buffer_layout, packet_bytes
from .linear import linear_launches
from .weights import matrices, weights_layout

SHARE = 0.9  # of the free memory, where nothing is said: other processes, and what the driver takes, need some
LAUNCH_BYTES = 24 << 10  # of a launch in a captured graph, generously; not measured yet
# In a pass, beside the products: of a layer, and of everything around the layers.
LAYER_LAUNCHES, OTHER_LAUNCHES = 8, 16
LIBRARY_BYTES = 64 * MIB  # cuBLAS's workspace on Hopper is 32 MiB a stream, and its handle takes as much
LARGEST_CACHE_ROWS = 2**31 - 1  # attention counts rows of the cache, [blocks * kv_heads * block_size], in int32


def plan_gpu_memory(
    device: Device,
    spec: ModelSpec,
    *,
    quantize: str,
    kv_cache_dtype: str = "bfloat16",
    block_size: int,
    max_model_len: int,
    buckets: Buckets,
    gpu_memory: float | int | None,
    kv_cache_memory: int | None,
) -> Plan:
    """`gpu_memory`: a share of the device's memory below 1, or bytes; all that this worker may take."""
    free, total = device.free_memory()
    budget = _budget(free, total, gpu_memory)
    weights = weights_layout(spec, quantize).size
    graphs = _graph_bytes(spec, buckets, quantize, device.capability) + LIBRARY_BYTES
    buffers = buffer_layout(device, spec, buckets, quantize, kv_cache_dtype, max_model_len, block_size).size
    workspace = buffers + packet_bytes(spec, buckets, max_model_len, block_size) + graphs
    block_bytes = cache_layout(spec, 1, block_size, kv_cache_dtype).size
    rest = budget - weights - workspace
    if kv_cache_memory is not None:
        if kv_cache_memory > rest:
            raise DoesNotFit(
                f"--kv-cache-memory {size(kv_cache_memory)} does not fit: {size(rest)} are left of {size(budget)} "
                f"after {size(weights)} for weights and {size(workspace)} for buffers and graphs; lower it"
            )
        rest = kv_cache_memory
    blocks = min(max(0, rest) // block_bytes, LARGEST_CACHE_ROWS // (spec.num_kv_heads * block_size))
    one_sequence = -(-max_model_len // block_size)
    if blocks < one_sequence and kv_cache_memory is not None:
        raise DoesNotFit(
            f"--kv-cache-memory {size(kv_cache_memory)} holds {blocks * block_size} tokens, but one sequence may have "
            f"{max_model_len}: raise it to {size(one_sequence * block_bytes)} or pass "
            f"--max-model-len {max(1, blocks * block_size)}"
        )
    if blocks < one_sequence:
        raise DoesNotFit(
            f"one sequence of {max_model_len} tokens needs {size(one_sequence * block_bytes)} of KV cache, but "
            f"{size(rest)} are left of {size(budget)} after {size(weights)} for weights and {size(workspace)} for "
            "buffers and graphs: raise --gpu-memory, or lower --max-model-len, --max-running or --max-step-tokens"
        )
    return Plan(
        weights_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes=blocks * block_bytes,
        num_blocks=blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_step_tokens=buckets.tokens[-1],
        max_logit_rows=buckets.rows[-1],
        threads=1,
        sequences_at_full_length=blocks / one_sequence,
    )


def _graph_bytes(spec: ModelSpec, buckets: Buckets, quantize: str, capability: int) -> int:
    launches = OTHER_LAUNCHES * buckets.graph_count
    for strict in (False, True):
        for tokens in (*buckets.decode, *buckets.tokens):
            products = sum(
                linear_launches(*size, quantize, tokens, capability, strict=strict) for size in matrices(spec).values()
            )
            launches += spec.num_layers * (LAYER_LAUNCHES + products)
    return LAUNCH_BYTES * launches


def _budget(free: int, total: int, gpu_memory: float | int | None) -> int:
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
