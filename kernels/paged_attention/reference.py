"""Paged attention: the definition, in float64.

A query at position p sees the keys j of its sequence with max(0, p - window + 1) <= j <= p. Key j is in block
block_table[j // block_size] at slot j % block_size. Query head h reads key-value head h // (heads / kv_heads).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quantise.reference import SMALLEST_MAXIMUM

FloatArray = npt.NDArray[np.float64]


def int8_cache_reference(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Keys or values [..., size] after rounding by an int8 cache: integers up to 127 times one scale per row."""
    scales = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), np.float32(SMALLEST_MAXIMUM)) / np.float32(127)
    return np.asarray(np.rint(rows / scales) * scales, np.float32)


def paged_attention_reference(
    query: npt.ArrayLike,
    positions: npt.NDArray[np.int32],
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    block_table: npt.NDArray[np.int32],
    window: int | None = None,
    cap: float = 0.0,
    sinks: npt.ArrayLike | None = None,
) -> FloatArray:
    """For one sequence: query [tokens, heads, size], keys and values [blocks, kv_heads, block_size, size].

    A `cap` other than 0 makes scores s into cap * tanh(s / cap). Of `sinks` [heads] each is one more score of its
    head, whose value is 0.
    """
    q: FloatArray = np.asarray(query, np.float64)
    tokens, heads, size = q.shape
    kv_heads, block_size = keys.shape[1:3]
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, size)
    out = np.zeros_like(grouped)
    for token, position in enumerate(positions):
        seen = np.arange(max(0, int(position) - window + 1) if window else 0, int(position) + 1)
        blocks, slots = block_table[seen // block_size], seen % block_size
        k, v = (cache[blocks, :, slots].astype(np.float64) for cache in (keys, values))  # [seen, kv_heads, size]
        scores = np.einsum("hgd,shd->hgs", grouped[token], k) / np.sqrt(size)
        if cap:
            scores = cap * np.tanh(scores / cap)
        if sinks is not None:
            scores = np.concatenate([scores, np.reshape(sinks, (*scores.shape[:2], 1))], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[token] = np.einsum("hgs,shd->hgd", weights[..., : len(seen)], v)
    return out.reshape(q.shape)
