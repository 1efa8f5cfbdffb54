"""The generic decoder on a GPU: a list of launches on buffers that never move, for a padded shape.

The residual stream has a buffer of its own and every norm adds into it, so a layer is ten launches (a few more where
int4 or int8 weights split a sum). Padding tokens are computed like others, write nothing to the cache and are never
looked at.
"""

from __future__ import annotations

import dataclasses

import torch

from ..kernels.embedding.gpu_launch import gather_rows
from ..kernels.paged_attention.gpu_launch import (
    paged_attention,
    plan_attention,
    plan_words,
    workspace_floats,
)
from ..kernels.paged_attention.gpu_table import AttentionLaunch, choose_launch
from ..kernels.rms_norm.gpu_launch import rms_norm
from ..kernels.rope.gpu_launch import LayerCache, rope_cache
from ..kernels.silu_mul.gpu_launch import silu_mul
from .device import Device
from .gpu_arena import Arena, Layout
from .gpu_buckets import Buckets, Shape
from .gpu_linear import linear_workspace
from .gpu_weights import DeviceLayer, DeviceWeights, matrices
from .spec import ModelSpec

DTYPE = torch.bfloat16  # of activations and cache


def attention_launch(spec: ModelSpec, shape: Shape, device: Device) -> AttentionLaunch:
    """The table's row, with no more programs than the device runs at a time."""
    launch = choose_launch(device.capability, spec.head_dim, DTYPE.itemsize, shape.chunks, shape.tokens)
    programs = min(launch.decode.programs, 2 * device.multiprocessors)
    return dataclasses.replace(launch, decode=dataclasses.replace(launch.decode, programs=programs))


def decoder_layout(spec: ModelSpec, buckets: Buckets, device: Device, width: int, quantize: str) -> Layout:
    """Every buffer of a forward pass, for the largest shape."""
    layout, tokens, rows, chunks = Layout(), buckets.tokens[-1], buckets.rows[-1], buckets.chunks
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    for name in ("ids", "positions", "slots"):
        layout.add(name, torch.int32, tokens)
    layout.add("lengths", torch.int32, chunks)
    layout.add("block_tables", torch.int32, chunks, width)
    for name, columns in {
        "residual": spec.hidden_size, "hidden": spec.hidden_size, "normed": spec.hidden_size, "qkv": query + 2 * kv,
        "mixed": query, "gate_up": 2 * spec.mlp_size, "gated": spec.mlp_size,
    }.items():  # fmt: skip
        layout.add(name, DTYPE, tokens, columns)
    for name in ("last_residual", "last_hidden", "last_normed"):
        layout.add(name, DTYPE, rows, spec.hidden_size)
    layout.add("logits", DTYPE, rows, spec.vocab_size)
    launches = {(shape.chunks, attention_launch(spec, shape, device)) for shape in buckets.every()}
    heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
    layout.add("plan", torch.int32, max(plan_words(n, spec.num_kv_heads, launch) for n, launch in launches))
    layout.add("partials", torch.float32, max(workspace_floats(n, *heads, launch) for n, launch in launches))
    sizes = [linear_workspace(*size, quantize, tokens, device.capability) for size in matrices(spec).values()]
    layout.add("workspace", torch.uint8, max(1, *sizes))
    return layout


class Decoder:
    """Enqueues forward passes. `starts` and `row_tokens` are the step's own, on the device."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DeviceWeights,
        rotation: torch.Tensor,
        cache: torch.Tensor,
        buffers: Arena,
    ) -> None:
        self._device, self._spec, self._weights, self._rotation = device, spec, weights, rotation
        self._caches = [LayerCache(keys, values) for keys, values in cache]
        self._buffers = buffers

    def forward(self, shape: Shape, starts: torch.Tensor, row_tokens: torch.Tensor) -> torch.Tensor:
        """Logits [shape.rows, vocab] of the tokens that `row_tokens` names."""
        spec, weights, capability = self._spec, self._weights, self._device.capability
        launch = attention_launch(spec, shape, self._device)
        buffers, tokens, workspace = self._buffers, shape.tokens, self._buffers["workspace"]
        residual, hidden = buffers["residual"][:tokens], buffers["hidden"][:tokens]
        plan_attention(
            starts,
            buffers["lengths"][: shape.chunks],
            buffers["plan"],
            kv_heads=spec.num_kv_heads,
            launch=launch,
            window=spec.sliding_window or 0,
        )
        gather_rows(buffers["ids"][:tokens], weights.embedding, residual, capability=capability)
        added: torch.Tensor | None = None  # what the last block gives to the residual stream
        for layer, cache in zip(weights.layers, self._caches, strict=True):
            self._norm(added, layer.input_norm, residual)
            self._attention(layer, cache, shape, starts, launch)
            layer.o(buffers["mixed"][:tokens], hidden, workspace)
            self._norm(hidden, layer.post_norm, residual)
            gate_up, gated = buffers["gate_up"][:tokens], buffers["gated"][:tokens]
            layer.gate_up(buffers["normed"][:tokens], gate_up, workspace)
            silu_mul(gate_up, gated, capability=capability)
            layer.down(gated, hidden, workspace)
            added = hidden
        return self._head(row_tokens[: shape.rows], residual, hidden)

    def _norm(self, added: torch.Tensor | None, weight: torch.Tensor, residual: torch.Tensor) -> None:
        """normed = norm(residual + added), and the residual becomes the sum."""
        x, into = (residual, None) if added is None else (added, residual)
        out = self._buffers["normed"][: len(residual)]
        rms_norm(x, weight, self._spec.norm_eps, out, capability=self._device.capability, residual=into)

    def _attention(
        self, layer: DeviceLayer, cache: LayerCache, shape: Shape, starts: torch.Tensor, launch: AttentionLaunch
    ) -> None:
        spec, buffers, tokens, chunks = self._spec, self._buffers, shape.tokens, shape.chunks
        qkv = buffers["qkv"][:tokens]
        layer.qkv(buffers["normed"][:tokens], qkv, buffers["workspace"])
        positions, slots = buffers["positions"][:tokens], buffers["slots"][:tokens]
        rope_cache(qkv, layer.heads, self._rotation, positions, slots, cache, capability=self._device.capability)
        paged_attention(
            qkv, cache.keys, cache.values, starts, buffers["lengths"][:chunks], buffers["block_tables"][:chunks],
            buffers["mixed"][:tokens].view(tokens, spec.num_heads, spec.head_dim),
            heads=spec.num_heads, kv_heads=spec.num_kv_heads, scale=spec.head_dim**-0.5,
            plan=buffers["plan"], workspace=buffers["partials"], launch=launch,
            longest_chunk=1 if shape.decode else tokens, window=spec.sliding_window or 0,
        )  # fmt: skip

    def _head(self, row_tokens: torch.Tensor, residual: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The last norm and the LM head, of the wanted rows alone."""
        buffers, rows, capability = self._buffers, len(row_tokens), self._device.capability
        last_residual, last_hidden = buffers["last_residual"][:rows], buffers["last_hidden"][:rows]
        gather_rows(row_tokens, residual, last_residual, capability=capability)
        gather_rows(row_tokens, hidden, last_hidden, capability=capability)
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
        self._weights.head(normed, logits, buffers["workspace"])
        return logits
