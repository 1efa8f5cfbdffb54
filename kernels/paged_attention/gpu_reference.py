"""Paged attention as the GPU kernels promise it: the definition, in float64, for a ragged batch.

Token t of a chunk of n tokens stands at position p = length - n + t and sees the keys j of its sequence with
max(0, p - window + 1) <= j <= p (window 0: all). Stored values times their scale, scores soft-capped by
cap * tanh(score / cap). A head's sink is one more score, of no key. Tokens of no chunk stay NaN.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from ..gpu.table import PAGE_TOKENS


def gathered(cache: Tensor, scales: Tensor | None, table: Tensor, length: int) -> Tensor:
    """[kv_heads, length, size] in float64 of one sequence's pages."""
    pages = table[: math.ceil(length / PAGE_TOKENS)].long()
    stored = cache[pages].double()
    if scales is not None:
        stored = stored * scales[pages].double()[..., None]
    return stored.movedim(1, 0).flatten(1, 2)[:, :length]


def paged_attention_reference(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, lengths: Tensor, tables: Tensor, *,
    scale: float, window: int = 0, soft_cap: float = 0.0, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """q [T, heads, size] -> [T, heads, size] float64."""
    out = torch.full(q.shape, math.nan, dtype=torch.float64)
    bounds = cast("list[int]", starts.tolist())
    for chunk, length in enumerate(cast("list[int]", lengths.tolist())):
        begin, end = bounds[chunk : chunk + 2]
        k, v = (gathered(c, s, tables[chunk], length) for c, s in ((keys, key_scales), (values, value_scales)))
        group = q.shape[1] // keys.shape[1]
        scores = torch.einsum("thd,hjd->htj", q[begin:end].double(), k.repeat_interleave(group, 0)) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        behind = torch.arange(length - end + begin, length)[:, None] - torch.arange(length)
        hidden = (behind < 0) | ((behind >= window) if window else False)
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:
            more = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, more], -1)
        weights = scores.softmax(-1)[..., :length]
        out[begin:end] = torch.einsum("htj,hjd->thd", weights, v.repeat_interleave(group, 0))
    return out
