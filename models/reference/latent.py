"""The definition of latent attention's queries, keys and values: each head's own, made from the latent vectors."""

import numpy as np

from ..checkpoint.latent import LatentSpec, LatentWeights
from ..checkpoint.rope import Float32Array, rope_tables
from ..checkpoint.safetensors import WeightArray, to_float32
from ..checkpoint.spec import LayerSpec, ModelSpec
from .operations import linear, rotate


def latent_heads(
    spec: ModelSpec, latent: LatentSpec, kind: LayerSpec, weights: LatentWeights, hidden: Float32Array
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Queries and keys [tokens, heads, query_dim], values [tokens, heads, value_dim]."""
    length, heads, plain, rank = len(hidden), spec.num_heads, latent.plain_dim, latent.kv_rank
    source = hidden
    if weights.query_down is not None and weights.query_norm is not None:
        source = rms_norm(latent, linear(hidden, weights.query_down, None), weights.query_norm)
    q = linear(source, weights.query, None).reshape(length, heads, latent.query_dim)
    row = linear(hidden, weights.down, None)
    up = linear(rms_norm(latent, row[:, :rank], weights.norm), weights.up, None).reshape(length, heads, -1)
    tables = rope_tables(kind.rope, latent.rope_dim, length)
    turned_q = rotate(q[..., plain:][..., spec.rotary_order], tables)
    turned_k = np.repeat(rotate(row[:, None, rank:][..., spec.rotary_order], tables), heads, axis=1)
    q = np.concatenate([q[..., :plain], turned_q], axis=-1)
    k = np.concatenate([up[..., :plain], turned_k], axis=-1)
    return q, k, up[..., plain:]


def rms_norm(latent: LatentSpec, values: Float32Array, gain: WeightArray) -> Float32Array:
    variance = np.mean(values * values, axis=-1, keepdims=True)
    result: Float32Array = values / np.sqrt(variance + np.float32(latent.norm_eps)) * to_float32(gain)
    return result
