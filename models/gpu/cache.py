"""The KV cache of a GPU: in bfloat16 (float32 beside such weights), or in 8 bits with a scale per token and head, which
halves it.

e4m3 has a small relative error for small values, int8 a small absolute error for large ones. Both scale a head's vector
by its largest magnitude, so an outlier affects only its own token.
"""

from __future__ import annotations

import torch

from ...kernels.rope.gpu import LayerCache
from ...protocol.settings import BLOCK_SIZE
from ..checkpoint.spec import ModelSpec
from .arena import Arena, Layout

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def cache_layout(spec: ModelSpec, num_blocks: int, kv_cache_dtype: str) -> Layout:
    """Keys and values of every layer, and their scales; the rows of latent attention are both, and there once."""
    layout, dtype = Layout(), DTYPES[kv_cache_dtype]
    parts = 2 if spec.latent is None else 1
    rows = (spec.num_layers, parts, num_blocks, spec.num_kv_heads, BLOCK_SIZE)
    layout.add("cache", dtype, *rows, spec.head_dim)
    if dtype.itemsize == 1:
        layout.add("scales", torch.float32, *rows)
    return layout


def cache_parts(cache: Arena) -> list[torch.Tensor]:
    """[layers, 2 or 1, blocks, …] each: all parts of a copied block."""
    scales = cache.get("scales")
    return [cache["cache"]] if scales is None else [cache["cache"], scales]


def layer_caches(cache: Arena) -> list[LayerCache]:
    """One for every layer."""
    scales = cache.get("scales")
    if scales is None:
        return [LayerCache(layer[0], layer[-1]) for layer in cache["cache"]]
    return [LayerCache(*layer, *of_layer) for layer, of_layer in zip(cache["cache"], scales, strict=True)]
