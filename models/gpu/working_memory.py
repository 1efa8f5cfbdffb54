"""What a forward pass works with: its buffers, for the largest shape, and what their sizes follow from."""

from __future__ import annotations

import torch

from ...kernels.paged_attention.gpu_launch import plan_words, workspace_floats
from ...kernels.paged_attention.gpu_table import AttentionLaunch, choose_latent_launch, choose_launch, head_tiles
from ..checkpoint.spec import ModelSpec
from .adapters import adapters_layout
from .arena import Layout
from .buckets import GpuSizes, PassShape
from .cache import DTYPES
from .device import Device
from .experts import mixture_layout
from .latent import latent_buffers, more_launches_of_latent
from .linear import IN_8_BITS, Activations, float_type, linear_workspace, plain_format
from .weights import formats_of, matrices, norms


def attention_launch(spec: ModelSpec, shape: PassShape, device: Device, kv_cache_dtype: str) -> AttentionLaunch:
    """Raises ValueError where no launch is known for what the model caches of a token and head."""
    capability, multiprocessors, strict = device.capability, device.multiprocessors, shape.strict
    if (latent := spec.latent) is not None:
        return choose_latent_launch(
            capability, latent.kv_rank, latent.rope_dim, shape.chunks, shape.tokens,
            multiprocessors=multiprocessors, strict=strict,
        )  # fmt: skip
    return choose_launch(
        capability, spec.head_dim, DTYPES[kv_cache_dtype].itemsize, shape.chunks, shape.tokens,
        multiprocessors=multiprocessors, strict=strict,
    )  # fmt: skip


def head_groups(spec: ModelSpec) -> int:
    """In how many groups the heads go through attention: those of a kv head, or tiles of all that read one row."""
    return spec.num_kv_heads if spec.latent is None else head_tiles(spec.num_heads)


def decoder_layout(spec: ModelSpec, sizes: GpuSizes, device: Device) -> Layout:
    """Every buffer of a forward pass, for the largest shape."""
    buckets, quantize, dtype = sizes.buckets, sizes.quantize, float_type(sizes.quantize)
    layout, tokens, rows, chunks = Layout(), buckets.tokens[-1], buckets.rows[-1], buckets.chunks
    sizes_of = {name: size for kind in spec.layers for name, size in matrices(spec, kind).items()}
    (qkv, _), (_, mixed) = sizes_of["qkv"], sizes_of["o"]
    for name in ("ids", "positions", "slots"):
        layout.add(name, torch.int32, tokens)
    layout.add("lengths", torch.int32, chunks)
    layout.add("block_tables", torch.int32, chunks, sizes.table_width)
    for name, columns in {
        "residual": spec.hidden_size, "hidden": spec.hidden_size, "qkv": qkv, "mixed": mixed,
    }.items():  # fmt: skip
        layout.add(name, dtype, tokens, columns)
    Activations.add(layout, "normed", tokens, spec.hidden_size, quantize)
    if "gate_up" in sizes_of:  # not every layer has experts
        layout.add("gate_up", dtype, tokens, sizes_of["gate_up"][0])
        Activations.add(layout, "gated", tokens, spec.mlp_size, quantize)
    if quantize in IN_8_BITS:
        Activations.add(layout, "mixed.quantised", tokens, mixed, quantize)
    for name in ("last_residual", "last_hidden", "last_normed"):
        layout.add(name, dtype, rows, spec.hidden_size)
    layout.add("logits", torch.float32, rows, spec.vocab_size)
    launches = {
        (shape.chunks, attention_launch(spec, shape, device, sizes.kv_cache_dtype)) for shape in buckets.every()
    }
    groups, value_dim = head_groups(spec), spec.head_dim
    if spec.latent is not None:
        value_dim = spec.latent.kv_rank
        layout.extend(latent_buffers(spec.latent, spec.num_heads, tokens, quantize))
    heads = (spec.num_heads, groups, value_dim)
    for index, _ in enumerate(windows(spec)):
        words = max(plan_words(n, groups, launch) for n, launch in launches)
        layout.add(f"plan.{index}", torch.int32, words)
    layout.add("partials", torch.float32, max(workspace_floats(n, *heads, launch) for n, launch in launches))
    products = [
        linear_workspace(*matrix, rows if name == "head" else tokens, device.capability)
        for name, matrix in formats_of(spec, quantize, sizes.stored).items()
    ]
    if spec.experts is not None:
        layout.extend(mixture_layout(spec.experts, spec.hidden_size, sizes, device.capability))
    head = spec.vocab_size, spec.hidden_size, plain_format(quantize)
    products.append(linear_workspace(*head, rows, device.capability))
    layout.add("workspace", torch.uint8, max(1, *products))
    layout.extend(adapters_layout(spec, sizes.adapters, tokens))
    return layout


def windows(spec: ModelSpec) -> list[int]:
    """Of the layers, each once; 0: none. Attention is planned for each."""
    return list(dict.fromkeys(layer.window or 0 for layer in spec.layers))


def more_launches(spec: ModelSpec) -> tuple[int, int]:
    """Of a layer and outside the layers, beyond those of a model with two norms a layer and one kind of attention."""
    behind = sum(name in norms(spec) for name in ("attention_out_norm", "mlp_out_norm"))
    capped = spec.logit_factor != 1.0 or spec.logit_cap is not None
    of_latent = 0 if spec.latent is None else more_launches_of_latent(spec.latent)
    return behind + 2 * (spec.qk_norm == "row") + of_latent, len(windows(spec)) - 1 + capped
