"""The attention of a layer on a GPU up to its output projection: its launches, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from ...kernels.paged_attention.gpu_launch import paged_attention
from ...kernels.paged_attention.gpu_table import AttentionLaunch
from ...kernels.rope.gpu import LayerCache, rope_cache
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted
from .arena import Arena
from .buckets import PassShape
from .linear import Activations, Linear
from .residual import Residual
from .rotation import Rotation
from .weights import DeviceLayer, Norm

# out = x W^T, and what each row's adapter adds: of a matrix, its adapters, x, out and the shape.
Multiply = Callable[[Linear, Adapted | None, Activations, torch.Tensor, PassShape], None]


class LayerPlace(NamedTuple):
    """What attention needs of a layer besides its weights."""

    cache: LayerCache
    rotation: Rotation
    window: int  # 0: none
    plan: torch.Tensor


class GroupedAttention:
    """Enqueues the attention of one layer with keys and values of their own."""

    def __init__(
        self,
        capability: int,
        spec: ModelSpec,
        layer: DeviceLayer,
        place: LayerPlace,
        residual: Residual,
        buffers: Arena,
        packet: Arena,
        multiply: Multiply,
    ) -> None:
        self._capability, self._spec, self._layer, self._place = capability, spec, layer, place
        self._residual, self._buffers, self._packet, self._multiply = residual, buffers, packet, multiply
        self._normed = Activations.of(buffers, "normed")

    def run(self, adapted: Mapping[str, Adapted], shape: PassShape, launch: AttentionLaunch) -> None:
        """From "normed" to "mixed"."""
        spec, layer, place, buffers, tokens = self._spec, self._layer, self._place, self._buffers, shape.tokens
        qkv, mixed, chunks, cache = buffers["qkv"][:tokens], buffers["mixed"][:tokens], shape.chunks, place.cache
        self._multiply(layer.qkv, adapted.get("qkv"), self._normed, qkv, shape)
        for row in layer.row_norms:
            part = qkv[:, row.columns]
            self._residual.norm(Norm(row.gain, None), part, Activations(part), row.x_bias, None)
        positions, slots = buffers["positions"][:tokens], buffers["slots"][:tokens]
        rope_cache(
            qkv, layer.heads, place.rotation.table, positions, slots, cache,
            capability=self._capability, strict=shape.strict, growth=place.rotation.growth,
        )  # fmt: skip
        paged_attention(
            qkv, cache.keys, cache.values, self._packet["starts"][: chunks + 1], buffers["lengths"][:chunks],
            buffers["block_tables"][:chunks], mixed.view(tokens, spec.num_heads, spec.head_dim),
            heads=spec.num_heads, kv_heads=spec.num_kv_heads, scale=spec.score_scale,
            plan=place.plan, workspace=buffers["partials"], launch=launch,
            longest_chunk=1 if shape.decode else tokens, window=place.window, soft_cap=spec.score_cap or 0.0,
            key_scales=cache.key_scales, value_scales=cache.value_scales, sinks=layer.sinks,
        )  # fmt: skip
