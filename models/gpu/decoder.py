"""The generic decoder on a GPU: a list of launches on buffers that never move, for a padded shape.

The residual stream has its own buffer and every norm adds into it. So a layer is ten launches (a few more if
quantised weights split a sum). Padding tokens are computed like others, but write nothing to the cache, and their
results are ignored. A pass has two halves, the layers and the head, connected only by the residual stream. In a pass
with LoRA adapters, two more launches follow each of a layer's four products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...kernels.embedding.gpu import gather_rows
from ...kernels.paged_attention.gpu_launch import paged_attention, plan_attention, plan_words, workspace_floats
from ...kernels.paged_attention.gpu_table import AttentionLaunch, choose_launch
from ...kernels.quantise.gpu import quantise_rows
from ...kernels.rms_norm.gpu import rms_norm
from ...kernels.rope.gpu import LayerCache, rope_cache
from ...kernels.silu_mul.gpu import silu_mul
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted, DeviceAdapters, adapters_layout
from .arena import Arena, Layout
from .buckets import GpuSizes, PassShape
from .cache import DTYPES
from .device import Device
from .linear import Activations, Linear, linear_workspace
from .weights import DeviceLayer, DeviceWeights, matrices

DTYPE = torch.bfloat16  # of activations


def attention_launch(spec: ModelSpec, shape: PassShape, device: Device, kv_cache_dtype: str) -> AttentionLaunch:
    return choose_launch(
        device.capability,
        spec.head_dim,
        DTYPES[kv_cache_dtype].itemsize,
        shape.chunks,
        shape.tokens,
        multiprocessors=device.multiprocessors,
        strict=shape.strict,
    )


def decoder_layout(spec: ModelSpec, sizes: GpuSizes, device: Device) -> Layout:
    """Every buffer of a forward pass, for the largest shape."""
    buckets, quantize = sizes.buckets, sizes.quantize
    layout, tokens, rows, chunks = Layout(), buckets.tokens[-1], buckets.rows[-1], buckets.chunks
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    for name in ("ids", "positions", "slots"):
        layout.add(name, torch.int32, tokens)
    layout.add("lengths", torch.int32, chunks)
    layout.add("block_tables", torch.int32, chunks, sizes.table_width)
    for name, columns in {
        "residual": spec.hidden_size, "hidden": spec.hidden_size, "qkv": query + 2 * kv, "mixed": query,
        "gate_up": 2 * spec.mlp_size,
    }.items():  # fmt: skip
        layout.add(name, DTYPE, tokens, columns)
    Activations.add(layout, "normed", tokens, spec.hidden_size, quantize)
    Activations.add(layout, "gated", tokens, spec.mlp_size, quantize)
    if quantize == "fp8":
        Activations.add(layout, "mixed.quantised", tokens, query, quantize)
    for name in ("last_residual", "last_hidden", "last_normed"):
        layout.add(name, DTYPE, rows, spec.hidden_size)
    layout.add("logits", torch.float32, rows, spec.vocab_size)
    launches = {
        (shape.chunks, attention_launch(spec, shape, device, sizes.kv_cache_dtype)) for shape in buckets.every()
    }
    heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
    layout.add("plan", torch.int32, max(plan_words(n, spec.num_kv_heads, launch) for n, launch in launches))
    layout.add("partials", torch.float32, max(workspace_floats(n, *heads, launch) for n, launch in launches))
    products = [linear_workspace(*size, quantize, tokens, device.capability) for size in matrices(spec).values()]
    products.append(linear_workspace(spec.vocab_size, spec.hidden_size, "none", rows, device.capability))
    layout.add("workspace", torch.uint8, max(1, *products))
    layout.extend(adapters_layout(spec, sizes.adapters, tokens))
    return layout


class Decoder:
    """Enqueues forward passes. `packet` is what a step brings, on the device."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DeviceWeights,
        rotation: torch.Tensor,
        caches: Sequence[LayerCache],
        kv_cache_dtype: str,
        buffers: Arena,
        packet: Arena,
        adapters: DeviceAdapters | None,
    ) -> None:
        self._device, self._spec, self._weights, self._rotation = device, spec, weights, rotation
        self._caches, self._kv_cache_dtype, self._buffers = caches, kv_cache_dtype, buffers
        self._packet, self._adapters = packet, adapters
        self._normed, self._gated = Activations.of(buffers, "normed"), Activations.of(buffers, "gated")
        self._mixed = Activations(buffers["mixed"])
        if self._normed.scales is not None:
            self._mixed = Activations.of(buffers, "mixed.quantised")

    def layers(self, shape: PassShape) -> None:
        """From the ids of all tokens to the last layer's output: "hidden", to be added to "residual"."""
        spec, weights, capability = self._spec, self._weights, self._device.capability
        launch = attention_launch(spec, shape, self._device, self._kv_cache_dtype)
        buffers, tokens, starts = self._buffers, shape.tokens, self._packet["starts"][: shape.chunks + 1]
        residual, hidden = buffers["residual"][:tokens], buffers["hidden"][:tokens]
        plan_attention(
            starts,
            buffers["lengths"][: shape.chunks],
            buffers["plan"],
            kv_heads=spec.num_kv_heads,
            launch=launch,
            window=spec.layers[0].window or 0,
        )
        gather_rows(buffers["ids"][:tokens], weights.embedding, residual, capability=capability)
        added: torch.Tensor | None = None  # what the last block adds to the residual stream
        for index, (layer, cache) in enumerate(zip(weights.layers, self._caches, strict=True)):
            adapted: Mapping[str, Adapted] = {}
            if shape.adapted and self._adapters is not None:
                adapted = self._adapters.layers[index]
            self._norm(added, layer.input_norm, residual)
            self._attention(layer, adapted.get("qkv"), cache, shape, starts, launch)
            self._multiply(layer.o, adapted.get("o"), self._mixed, hidden, shape)
            self._norm(hidden, layer.mlp_norm, residual)
            gate_up, gated = buffers["gate_up"][:tokens], self._gated.first(tokens)
            self._multiply(layer.gate_up, adapted.get("gate_up"), self._normed, gate_up, shape)
            silu_mul(gate_up, gated.values, capability=capability, scales=gated.scales)
            self._multiply(layer.down, adapted.get("down"), self._gated, hidden, shape)
            added = hidden

    def _multiply(
        self, linear: Linear, adapted: Adapted | None, x: Activations, out: torch.Tensor, shape: PassShape
    ) -> None:
        """out = x W^T, and what each row's adapter adds."""
        x = x.first(shape.tokens)
        linear(x, out, self._buffers["workspace"], strict=shape.strict)
        if adapted is not None:
            adapted.add(x, self._packet["adapters"][: shape.tokens], out, self._buffers["shrunk"])

    def _norm(self, added: torch.Tensor | None, weight: torch.Tensor, residual: torch.Tensor) -> None:
        """normed = norm(residual + added), and the residual becomes the sum."""
        x, into = (residual, None) if added is None else (added, residual)
        out = self._normed.first(len(residual))
        rms_norm(
            x, weight, self._spec.norm_eps, out.values,
            capability=self._device.capability, residual=into, scales=out.scales,
        )  # fmt: skip

    def _attention(
        self,
        layer: DeviceLayer,
        adapted: Adapted | None,
        cache: LayerCache,
        shape: PassShape,
        starts: torch.Tensor,
        launch: AttentionLaunch,
    ) -> None:
        spec, buffers, tokens, chunks = self._spec, self._buffers, shape.tokens, shape.chunks
        qkv, mixed = buffers["qkv"][:tokens], buffers["mixed"][:tokens]
        self._multiply(layer.qkv, adapted, self._normed, qkv, shape)
        positions, slots = buffers["positions"][:tokens], buffers["slots"][:tokens]
        rope_cache(
            qkv, layer.heads, self._rotation, positions, slots, cache,
            capability=self._device.capability, strict=shape.strict,
        )  # fmt: skip
        paged_attention(
            qkv, cache.keys, cache.values, starts, buffers["lengths"][:chunks], buffers["block_tables"][:chunks],
            mixed.view(tokens, spec.num_heads, spec.head_dim),
            heads=spec.num_heads, kv_heads=spec.num_kv_heads, scale=spec.score_scale,
            plan=buffers["plan"], workspace=buffers["partials"], launch=launch,
            longest_chunk=1 if shape.decode else tokens, window=spec.layers[0].window or 0,
            key_scales=cache.key_scales, value_scales=cache.value_scales,
        )  # fmt: skip
        out = self._mixed.first(tokens)
        if out.scales is not None:
            quantise_rows(mixed, out.values, out.scales, capability=self._device.capability)

    def head(self, rows: int, *, strict: bool) -> torch.Tensor:
        """Float32 logits [rows, vocab] of the tokens that the packet names: the last norm and the LM head."""
        buffers, capability = self._buffers, self._device.capability
        row_tokens = self._packet["row_tokens"][:rows]
        last_residual, last_hidden = buffers["last_residual"][:rows], buffers["last_hidden"][:rows]
        gather_rows(row_tokens, buffers["residual"], last_residual, capability=capability)
        gather_rows(row_tokens, buffers["hidden"], last_hidden, capability=capability)
        normed = buffers["last_normed"][:rows]
        rms_norm(
            last_hidden,
            self._weights.final_norm,
            self._spec.norm_eps,
            normed,
            capability=capability,
            residual=last_residual,
        )
        logits = buffers["logits"][:rows]
        self._weights.head(Activations(normed), logits, buffers["workspace"], strict=strict)
        return logits
