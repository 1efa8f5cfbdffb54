"""Makes a stepper on a GPU or the rehearsal device from a checkpoint: refusals, the memory plan, the model."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from msgspec.structs import replace

from ...kernels.gemm.gpu_weights import GROUPS
from ...kernels.gpu.table import E4M3_CAPABILITY
from ...kernels.quantise.gpu import GROUP
from ...protocol.settings import BLOCK_SIZE, EngineSettings, LargestStep
from ...protocol.steps import ReportProgress
from ..checkpoint.open import Checkpoint
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import load_weights, outline_weights, stored_matrices
from ..errors import DoesNotFit, UnsupportedDevice, UnsupportedModel
from ..guides.grammars import load_grammars
from ..memory_plan import context_length, shortest_length, size
from ..stepper import LoadedModel
from .buckets import Buckets, GpuSizes, PassShape
from .cache import DTYPES
from .device import Device
from .gpu import GpuModel
from .linear import IN_8_BITS
from .memory import graph_bytes, largest_step, plan_on_gpu
from .stepper import GpuStepper
from .stored import FLOAT32, FP8_BLOCK, StoredFormats, described_formats, stored_formats, stored_in_blocks
from .structure import refuse_settings, refuse_structure
from .working_memory import attention_launch, head_groups

_LOG: Final = logging.getLogger("triolet.gpu")
MAX_LOGIT_ROWS = 256  # per pass; prompt log probabilities with more rows run in parts


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
    """Refuses before reading weights, except if another process takes the memory meanwhile, or graphs take so much more
    than was guessed that a sequence no longer fits.
    """
    spec = checkpoint.spec
    sizes = sizes_of(checkpoint, settings, device)
    shortest = shortest_length(settings, sizes.max_model_len)
    planned = partial(
        plan_on_gpu, device, spec, sizes, settings.gpu_memory, settings.kv_cache_memory, shortest, device.free_memory()
    )
    plan = planned()

    def blocks_beside(graphs: int) -> int:
        nonlocal plan
        plan = planned(max(0, graphs))  # another process may have given memory back
        return plan.num_blocks

    measures = blocks_beside if settings.kv_cache_memory is None else None
    sizes = replace(sizes, max_model_len=min(sizes.max_model_len, plan.num_blocks * BLOCK_SIZE))
    weights = load_weights(checkpoint, report)
    try:
        model = GpuModel(device, spec, weights, replace(sizes, num_blocks=plan.num_blocks), report, measures)
    except RuntimeError as error:  # torch's, Triton's and the driver's own errors have no other class in common
        if "out of memory" not in str(error):
            raise
        raise DoesNotFit(f"the GPU's memory ran out while loading: lower --gpu-memory ({error})") from error
    guessed = graph_bytes(spec, sizes, device.capability)
    _LOG.info("graphs and libraries took %s; the guess was %s", size(model.graph_bytes), size(guessed))
    return LoadedModel(
        stepper=GpuStepper(model, load_grammars(checkpoint, jump_ahead=not settings.no_jump_ahead)),
        device=device.name,
        dtype=described_formats(checkpoint, sizes.stored, sizes.quantize),
        kv_cache_dtype=sizes.kv_cache_dtype,
        context_length=min(sizes.max_model_len, plan.num_blocks * BLOCK_SIZE),
        largest_step=LargestStep(max_running=sizes.buckets.chunks, max_step_tokens=sizes.buckets.tokens[-1]),
        memory=plan,
        libraries=("torch", "triton"),
    )


def sizes_of(checkpoint: Checkpoint, settings: EngineSettings, device: Device) -> GpuSizes:
    """The settings, checked, and the formats of matrices that the checkpoint stores quantised; from headers alone."""
    stored = StoredFormats()
    if found := stored_matrices(checkpoint):
        if settings.quantize != "none":
            raise UnsupportedDevice(
                f"--quantize {settings.quantize}: the checkpoint is quantised already ({found[0].format}) and would "
                "only lose more; leave it out, or take the unquantised checkpoint"
            )
        if settings.dtype == "auto":
            weights = outline_weights(checkpoint)
            stored = stored_formats(weights)
            if _runs_in_blocks(settings, device) and stored_in_blocks(checkpoint.spec, weights):
                settings = replace(settings, quantize=FP8_BLOCK)
        if stored and checkpoint.spec.latent is not None:
            remedy = "does not run from integers as they are stored: --dtype bfloat16 widens them"
            raise UnsupportedModel("latent attention", found[0].format, remedy)
    return gpu_sizes(checkpoint.spec, settings, device, stored)


def gpu_sizes(
    spec: ModelSpec, settings: EngineSettings, device: Device, stored: StoredFormats | None = None
) -> GpuSizes:
    """The settings, checked against what the device and its kernels support; steps as large as the device suits."""
    _refuse(spec, settings, device)
    quantize, kv_cache_dtype, places = *_formats(settings), settings.adapter_places

    def sizes_for(step: LargestStep) -> GpuSizes:
        tokens = step.max_step_tokens
        return GpuSizes(
            quantize=quantize,
            stored=stored or {},
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=context_length(settings, spec.max_position),
            buckets=Buckets(
                max_tokens=tokens,
                max_chunks=step.max_running,
                max_rows=min(tokens, max(step.max_running, MAX_LOGIT_ROWS)),
                adapters=places.count > 0,
            ),
            adapters=places,
        )

    return sizes_for(largest_step(device, spec, settings, sizes_for))


def _formats(settings: EngineSettings) -> tuple[str, str]:
    """Of weights and of the KV cache."""
    if settings.dtype == "float32":  # the only format of both beside which the other is
        return FLOAT32, "float32"
    return settings.quantize, "bfloat16" if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype


def _runs_in_blocks(settings: EngineSettings, device: Device) -> bool:
    return device.capability >= E4M3_CAPABILITY and settings.adapter_places.count == 0


def _refuse(spec: ModelSpec, settings: EngineSettings, device: Device) -> None:
    """Raises for what does not run, naming the setting or the model's key."""
    refuse_structure(spec)
    refuse_settings(spec, settings)
    quantize, kv_cache_dtype = settings.quantize, settings.kv_cache_dtype
    if settings.dtype not in ("auto", "bfloat16", "float32"):
        raise UnsupportedDevice(f"--dtype {settings.dtype}: the GPU runs bfloat16 and float32")
    if settings.keep_packed_weights:
        raise UnsupportedDevice("--keep-packed-weights: a GPU packs nothing that could be kept; leave it out")
    if quantize not in ("none", "int8", "int4", *IN_8_BITS):
        raise UnsupportedDevice(f"--quantize {quantize}: the GPU runs none, int8, int4, {', '.join(IN_8_BITS)}")
    if quantize in ("fp8", FP8_BLOCK) and device.capability < E4M3_CAPABILITY:
        raise UnsupportedDevice(
            f"--quantize {quantize}: a GPU of compute capability {device.capability / 10} multiplies no float8; use "
            "w8a8, int8 or int4 (--kv-cache-dtype fp8 does work here)"
        )
    if kv_cache_dtype != "auto" and kv_cache_dtype not in DTYPES:
        raise UnsupportedDevice(f"--kv-cache-dtype {kv_cache_dtype}: the GPU has {', '.join(DTYPES)}")
    if settings.max_step_tokens == 1:
        raise UnsupportedDevice("--max-step-tokens 1: a step on the GPU takes at least 2 tokens; raise it")
    for name, inputs in _grouped_sizes(spec):
        if quantize == "int4" and inputs % min(GROUPS):
            raise UnsupportedModel(name, inputs, f"int4 weights come in groups of {min(GROUPS)}; use --quantize int8")
        if quantize == FP8_BLOCK and inputs % GROUP:
            raise UnsupportedModel(name, inputs, f"fp8-block has blocks of {GROUP} inputs; use --quantize fp8")
    context_length(settings, spec.max_position)
    try:
        launch = attention_launch(spec, PassShape(1, 1, 1, decode=True), device, _formats(settings)[1])
    except ValueError as error:
        name = "head_dim" if spec.latent is None else "latent attention"
        raise UnsupportedModel(name, spec.head_dim, f"{error}; run this model on the CPU") from error
    if (group := spec.num_heads // head_groups(spec)) > launch.prefill.rows:
        remedy = f"attention takes up to {launch.prefill.rows} query heads for one of keys, here; run it on the CPU"
        raise UnsupportedModel("num_attention_heads / num_key_value_heads", group, remedy)


def _grouped_sizes(spec: ModelSpec) -> list[tuple[str, int]]:
    """Inputs of the matrices that are cut into groups. A model without dense layers has an MLP of size 0."""
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
