"""The weights of latent attention on a GPU, beside the output projection (weights.py).

    qkv        one product of the hidden state: the latent vector, the key that will be rotated, and the queries, or
               the queries' own latent vector where the model has one
    queries    the queries of that
    keys       of each head, from its query's plain part to the latent vector: what would make keys of the vectors
    values     of each head, from the latent vector to its result

The last two are applied to few rows of each head, so they stay in bfloat16 whatever --quantize says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace

from ..checkpoint.latent import LatentSpec, LatentWeights
from ..checkpoint.rope import IndexArray
from ..checkpoint.spec import ModelSpec
from .arena import Arena, Layout
from .linear import Linear, Matrices
from .staging import Staging, host_tensor
from .stored import ordered_rows


@dataclass(frozen=True, slots=True)
class DeviceLatent:
    """Of one layer."""

    norm: torch.Tensor  # [kv_rank]
    query_norm: torch.Tensor | None  # [query_rank]
    queries: Linear | None
    keys: torch.Tensor  # [heads, kv_rank, plain_dim]
    values: torch.Tensor  # [heads, value_dim, kv_rank]


def latent_matrices(spec: LatentSpec, hidden: int, heads: int) -> Matrices:
    """[out, in] of those that are a `Linear`."""
    queries = heads * spec.query_dim
    if spec.query_rank is None:
        return {"qkv": (spec.row_dim + queries, hidden)}
    return {"qkv": (spec.row_dim + spec.query_rank, hidden), "queries": (queries, spec.query_rank)}


def latent_layout(spec: LatentSpec, heads: int, prefix: str) -> Layout:
    """Room for the others of a layer."""
    layout, dtype = Layout(), torch.bfloat16
    layout.add(f"{prefix}latent_norm", dtype, spec.kv_rank)
    if spec.query_rank is not None:
        layout.add(f"{prefix}query_norm", dtype, spec.query_rank)
    layout.add(f"{prefix}keys", dtype, heads, spec.kv_rank, spec.plain_dim)
    layout.add(f"{prefix}values", dtype, heads, spec.value_dim, spec.kv_rank)
    return layout


def place_latent(arena: Arena, prefix: str, queries: Linear | None) -> DeviceLatent:
    return DeviceLatent(
        norm=arena[f"{prefix}latent_norm"],
        query_norm=arena.get(f"{prefix}query_norm"),
        queries=queries,
        keys=arena[f"{prefix}keys"],
        values=arena[f"{prefix}values"],
    )


def fill_latent(
    staging: Staging, arena: Arena, spec: LatentSpec, heads: int, weights: LatentWeights, prefix: str
) -> None:
    """Write a layer's weights into the room of `latent_layout`."""
    for name, gains in (("latent_norm", weights.norm), ("query_norm", weights.query_norm)):
        if gains is not None:
            staging.put(arena[prefix + name], gains)
    up = host_tensor(weights.up).bfloat16().view(heads, spec.plain_dim + spec.value_dim, spec.kv_rank)
    staging.put(arena[f"{prefix}keys"], up[:, : spec.plain_dim].mT)
    staging.put(arena[f"{prefix}values"], up[:, spec.plain_dim :])


def latent_in_order(spec: ModelSpec, weights: LatentWeights) -> LatentWeights:
    """With the rotated dimensions of queries and of the key in the order of their pairs."""
    assert spec.latent is not None

    def order(size: int) -> IndexArray:
        plain = size - len(spec.rotary_order)
        return np.concatenate([np.arange(plain), plain + spec.rotary_order])

    return replace(
        weights,
        query=ordered_rows(weights.query, order(spec.latent.query_dim)),
        down=ordered_rows(weights.down, order(spec.latent.row_dim)),
    )
