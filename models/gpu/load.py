"""Makes a stepper on a GPU or the rehearsal device from a checkpoint: refusals, the memory plan, the model.

The plan's sizes come from the layouts that are allocated later, so they are exact. Only the driver's memory for
graphs (by number of launches) and for cuBLAS is estimated.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from ...kernels.gemm.gpu_weights import GROUPS
from ...kernels.gpu.table import E4M3_CAPABILITY
from ...protocol.settings import BLOCK_SIZE, MIB, EngineSettings
from ...protocol.steps import MemoryPlan, ReportProgress
from ..checkpoint.open import Checkpoint
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import load_weights, outline_weights, stored_matrices
from ..errors import DoesNotFit, UnsupportedDevice, UnsupportedModel
from ..guides.grammars import load_grammars
from ..memory_plan import blocks_in, context_length, plan_of, shortest_length, size
from ..stepper import LoadedModel
from .adapters import place_layout
from .buckets import Buckets, GpuSizes, PassShape
from .cache import DTYPES, cache_layout
from .device import Device
from .experts import more_launches_of_experts
from .gpu import GpuModel, buffer_layout
from .linear import linear_launches
from .packet import packet_layout
from .stepper import GpuStepper
from .stored import described_formats, stored_formats
from .structure import refuse_settings, refuse_structure
from .weights import formats_of, weights_layout
from .working_memory import attention_launch, more_launches

MAX_LOGIT_ROWS = 256  # per pass; prompt log probabilities with more rows run in parts
SHARE = 0.9  # of the free memory, by default: other processes and the driver need some
LAUNCH_BYTES = 24 << 10  # per launch in a captured graph; a generous guess, not measured yet
# Launches in a pass besides the products: of a layer, of its adapters, and outside the layers. What a structure has
# more is added to them (working_memory.py, experts.py).
LAYER_LAUNCHES, ADAPTER_LAUNCHES, OTHER_LAUNCHES = 8, 8, 16
LIBRARY_BYTES = 64 * MIB  # cuBLAS's workspace on Hopper is 32 MiB per stream, and its handle takes the same
LARGEST_CACHE_ROWS = 2**31 - 1  # attention counts rows of the cache, [blocks * kv_heads * BLOCK_SIZE], in int32


def open_device(kernels: str) -> Device:
    """The GPU; with `interpret`, the rehearsal device, which needs no GPU."""
    if kernels == "interpret":
        from .rehearsal import RehearsalDevice

        return RehearsalDevice()
    from .cuda import CudaDevice

    return CudaDevice()


def load_on_gpu(
    checkpoint: Checkpoint, settings: EngineSettings, device: Device, report: ReportProgress
) -> LoadedModel:
    """Refuses before reading weights, except if another process takes the memory meanwhile."""
    spec = checkpoint.spec
    sizes = sizes_of(checkpoint, settings, device)
    shortest = shortest_length(settings, sizes.max_model_len)
    plan = plan_on_gpu(device, spec, sizes, settings.gpu_memory, settings.kv_cache_memory, shortest)
    sizes = replace(sizes, max_model_len=min(sizes.max_model_len, plan.num_blocks * BLOCK_SIZE))
    weights = load_weights(checkpoint, report)
    try:
        model = GpuModel(device, spec, weights, replace(sizes, num_blocks=plan.num_blocks), report)
    except RuntimeError as error:  # torch's, Triton's and the driver's own errors have no other class in common
        if "out of memory" not in str(error):
            raise
        raise DoesNotFit(f"the GPU's memory ran out while loading: lower --gpu-memory ({error})") from error
    return LoadedModel(
        stepper=GpuStepper(model, load_grammars(checkpoint, jump_ahead=not settings.no_jump_ahead)),
        device=device.name,
        dtype=described_formats(checkpoint, sizes.stored),
        kv_cache_dtype=sizes.kv_cache_dtype,
        context_length=sizes.max_model_len,
        memory=plan,
        libraries=("torch", "triton"),
    )


def sizes_of(checkpoint: Checkpoint, settings: EngineSettings, device: Device) -> GpuSizes:
    """The settings, checked, and the formats of matrices that the checkpoint stores quantised; from headers alone."""
    sizes, found = gpu_sizes(checkpoint.spec, settings, device), stored_matrices(checkpoint)
    if not found:
        return sizes
    if sizes.quantize != "none":
        raise UnsupportedDevice(
            f"--quantize {sizes.quantize}: the checkpoint is quantised already ({found[0].format}) and would only lose "
            "more; leave it out, or take the unquantised checkpoint"
        )
    stored = stored_formats(outline_weights(checkpoint)) if settings.dtype == "auto" else {}
    if stored and checkpoint.spec.latent is not None:
        remedy = "does not run from integers as they are stored: --dtype bfloat16 widens them"
        raise UnsupportedModel("latent attention", found[0].format, remedy)
    return replace(sizes, stored=stored)


def gpu_sizes(spec: ModelSpec, settings: EngineSettings, device: Device) -> GpuSizes:
    """The settings, checked against what the device and its kernels support."""
    refuse_structure(spec)
    refuse_settings(spec, settings)
    quantize, kv_cache_dtype = settings.quantize, settings.kv_cache_dtype
    if settings.dtype not in ("auto", "bfloat16"):
        raise UnsupportedDevice(f"--dtype {settings.dtype}: the GPU runs bfloat16; pass --dtype bfloat16")
    if settings.keep_packed_weights:
        raise UnsupportedDevice("--keep-packed-weights: a GPU packs nothing that could be kept; leave it out")
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
    if settings.max_step_tokens == 1:
        raise UnsupportedDevice("--max-step-tokens 1: a step on the GPU takes at least 2 tokens; raise it")
    for name, inputs in _grouped_sizes(spec):
        if quantize == "int4" and inputs % min(GROUPS):
            raise UnsupportedModel(name, inputs, f"int4 weights come in groups of {min(GROUPS)}; use --quantize int8")
    length = context_length(settings, spec.max_position)
    try:
        attention_launch(spec, PassShape(1, 1, 1, decode=True), device, kv_cache_dtype)
    except ValueError as error:
        name = "head_dim" if spec.latent is None else "latent attention"
        raise UnsupportedModel(name, spec.head_dim, f"{error}; run this model on the CPU") from error
    rows, places = min(settings.max_step_tokens, max(settings.max_running, MAX_LOGIT_ROWS)), settings.adapter_places
    return GpuSizes(
        quantize=quantize,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=length,
        buckets=Buckets(
            max_tokens=settings.max_step_tokens,
            max_chunks=settings.max_running,
            max_rows=rows,
            adapters=places.count > 0,
        ),
        adapters=places,
    )


def _grouped_sizes(spec: ModelSpec) -> list[tuple[str, int]]:
    """Inputs of the matrices that int4 cuts into groups. A model without dense layers has an MLP of size 0."""
    sizes = [
        ("hidden_size", spec.hidden_size),
        ("num_attention_heads * head_dim", spec.num_heads * spec.mixed_dim),
        ("intermediate_size", spec.mlp_size),
    ]
    if spec.latent is not None and spec.latent.query_rank is not None:
        sizes.append(("q_lora_rank", spec.latent.query_rank))
    if spec.experts is not None:
        sizes += [
            ("the width of experts", spec.experts.width),
            ("the width of a shared expert", spec.experts.shared_width),
        ]
    return sizes


def plan_on_gpu(
    device: Device,
    spec: ModelSpec,
    sizes: GpuSizes,
    gpu_memory: float | None = None,
    kv_cache_memory: int | None = None,
    shortest: int | None = None,
) -> MemoryPlan:
    """Weights, working buffers, graphs, and the rest for KV. `gpu_memory` limits this worker: a share of the device up
    to 1, or bytes. The blocks hold one sequence of full length, or at least one of `shortest` tokens if that is given.
    """
    shortest = shortest or sizes.max_model_len
    budget = _budget(*device.free_memory(), gpu_memory)
    weights = weights_layout(spec, sizes.quantize, sizes.stored).size
    graphs = _graph_bytes(spec, sizes, device.capability) + LIBRARY_BYTES
    workspace = buffer_layout(device, spec, sizes).size + packet_layout(sizes, spec.vocab_size).size + graphs
    if sizes.adapters.count:  # place_layout knows no matrices of latent attention, which takes none
        workspace += sizes.adapters.count * place_layout(spec, sizes.adapters).size
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


def _graph_bytes(spec: ModelSpec, sizes: GpuSizes, capability: int) -> int:
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
    return LAUNCH_BYTES * launches


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
