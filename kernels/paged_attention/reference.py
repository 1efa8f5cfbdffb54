"""Paged attention: the definition, in float64.

A query at position p sees the keys j with max(0, p - window + 1) <= j <= p of its sequence, whose key j lies in block
block_table[j // block_size] at slot j % block_size. Query head h reads key-value head h // (heads / kv_heads).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def paged_attention_reference(
    query: npt.ArrayLike,
    positions: npt.NDArray[np.int32],
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    block_table: npt.NDArray[np.int32],
    window: int | None = None,
) -> FloatArray:
    """query [tokens, heads, size] of one sequence, keys and values [blocks, kv_heads, block_size, size]."""
    q: FloatArray = np.asarray(query, np.float64)
    group = q.shape[1] // keys.shape[1]
    block_size = keys.shape[2]
    out = np.zeros_like(q)
    for token, position in enumerate(positions):
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        blocks, slots = block_table[seen // block_size], seen % block_size
        for head in range(q.shape[1]):
            k, v = (cache[blocks, head // group, slots].astype(np.float64) for cache in (keys, values))
            scores = k @ q[token, head] / np.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ v / weights.sum()
    return out
