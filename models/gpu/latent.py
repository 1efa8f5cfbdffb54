"""Latent attention of a layer on a GPU up to its output projection, in the absorbed form: each head's matrices are
applied to its query and to its result, and what is cached is read as it is, by all heads.

What it launches beyond attention with keys of its own: the norm and the product of the queries' latent vector, where
the model has one, and the two products of heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...kernels.gemm.gpu_heads import multiply_heads
from ...kernels.paged_attention.gpu_launch import paged_attention
from ...kernels.paged_attention.gpu_table import AttentionLaunch, head_tiles
from ...kernels.rms_norm.gpu import norm_rows
from ...kernels.rope.gpu_latent import latent_cache
from ..checkpoint.latent import LatentSpec
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted
from .arena import Arena, Layout
from .attention import LayerPlace, Multiply
from .buckets import PassShape
from .latent_weights import DeviceLatent
from .linear import Activations
from .weights import DeviceLayer


def latent_buffers(spec: LatentSpec, heads: int, tokens: int, quantize: str) -> Layout:
    """What a pass works with beyond the buffers of other attention, for the largest shape."""
    layout = Layout()
    if spec.query_rank is not None:
        Activations.add(layout, "query_vector", tokens, spec.query_rank, quantize)
        layout.add("queries", torch.bfloat16, tokens, heads * spec.query_dim)
    layout.add("q", torch.bfloat16, tokens, heads, spec.row_dim)
    layout.add("vectors", torch.bfloat16, tokens, heads, spec.kv_rank)
    return layout


def more_launches_of_latent(spec: LatentSpec) -> int:
    """Of a layer, besides its plain products."""
    return 2 + (spec.query_rank is not None)


class LatentAttention:
    """Enqueues the latent attention of one layer."""

    def __init__(
        self,
        capability: int,
        spec: ModelSpec,
        latent: LatentSpec,
        layer: DeviceLayer,
        weights: DeviceLatent,
        place: LayerPlace,
        buffers: Arena,
        packet: Arena,
        multiply: Multiply,
    ) -> None:
        self._capability, self._latent, self._layer, self._weights = capability, latent, layer, weights
        self._heads, self._scale, self._place = spec.num_heads, spec.score_scale, place
        self._buffers, self._packet, self._multiply = buffers, packet, multiply
        self._normed = Activations.of(buffers, "normed")

    def run(self, adapted: Mapping[str, Adapted], shape: PassShape, launch: AttentionLaunch) -> None:
        """From "normed" to "mixed"."""
        del adapted  # such models take none
        spec, weights, place, buffers, tokens = self._latent, self._weights, self._place, self._buffers, shape.tokens
        heads, chunks, rows = self._heads, shape.chunks, place.cache.keys
        projected, q, vectors = (buffers[name][:tokens] for name in ("qkv", "q", "vectors"))
        self._multiply(self._layer.qkv, None, self._normed, projected, shape)
        queries = self._queries(projected[:, spec.row_dim :], shape)
        plain = queries.view(tokens, heads, spec.query_dim)[..., : spec.plain_dim]
        vector_q = q[..., : spec.kv_rank]
        multiply_heads(plain, weights.keys, vector_q, capability=self._capability, strict=shape.strict)
        latent_cache(
            projected[:, : spec.row_dim], queries, weights.norm, spec.norm_eps, place.rotation.table,
            buffers["positions"][:tokens], buffers["slots"][:tokens], rows, q,
        )  # fmt: skip
        paged_attention(
            q.flatten(1), rows, rows, self._packet["starts"][: chunks + 1], buffers["lengths"][:chunks],
            buffers["block_tables"][:chunks], vectors, heads=heads, kv_heads=head_tiles(heads), scale=self._scale,
            plan=place.plan, workspace=buffers["partials"], launch=launch,
            longest_chunk=1 if shape.decode else tokens, window=place.window, rope_dim=spec.rope_dim,
        )  # fmt: skip
        mixed = buffers["mixed"][:tokens].view(tokens, heads, spec.value_dim)
        multiply_heads(vectors, weights.values, mixed, capability=self._capability, strict=shape.strict)

    def _queries(self, columns: torch.Tensor, shape: PassShape) -> torch.Tensor:
        """[tokens, heads * query_dim], from what the first product has for them."""
        weights, buffers = self._weights, self._buffers
        if weights.queries is None:
            return columns
        vector, queries = Activations.of(buffers, "query_vector"), buffers["queries"][: shape.tokens]
        normed = vector.first(shape.tokens)
        norm_rows(
            columns, weights.query_norm, self._latent.norm_eps, normed.values,
            capability=self._capability, scales=normed.scales,
        )  # fmt: skip
        self._multiply(weights.queries, None, vector, queries, shape)
        return queries
