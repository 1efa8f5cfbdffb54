"""Rope, q/k norm and cache write on the GPU (or interpreted): checks, picks the launch, launches. Allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..gpu.language import cdiv, next_power_of_2
from ..gpu.table import choose
from ..quantise.gpu_launch import E4M3_CAPABILITY
from .gpu import rope_cache_kernel
from .gpu_table import TABLE

PAGE = 64  # tokens of a page of the cache
CACHE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """What a layer adds to and multiplies with its heads before they turn."""

    bias: torch.Tensor | None = None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: torch.Tensor | None = None  # [head_dim], both or none
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer of the KV cache. Scales, for int8 and e4m3 only: float32 [pages, kv_heads, PAGE]."""

    keys: torch.Tensor  # [pages, kv_heads, PAGE, head_dim]
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


def rope_cache(
    qkv: torch.Tensor,
    weights: HeadWeights,
    table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    *,
    capability: int,
    strict: bool = False,
) -> None:
    """Turn the queries of qkv [tokens, (heads + 2 kv_heads) * head_dim] in place; cache the turned keys and the values.

    table float32 [positions, head_dim]: cosines, then sines. positions and slots int32 [tokens]; a slot is page * PAGE
    + offset, negative for padding, whose position must still be one of the table. strict: a token's bits do not depend
    on how many there are.
    """
    tokens, width = qkv.shape
    pages, kv_heads, page, head_dim = cache.keys.shape
    heads = width // head_dim - 2 * kv_heads
    if page != PAGE or head_dim % 2 or heads <= 0 or heads % kv_heads or width % head_dim:
        raise ValueError(f"qkv {tuple(qkv.shape)} does not go with {PAGE}-token pages {tuple(cache.keys.shape)}")
    if cache.values.shape != cache.keys.shape or cache.values.dtype != cache.keys.dtype:
        raise ValueError("keys and values must have one shape and type")
    quantised = cache.keys.dtype in (torch.int8, torch.float8_e4m3fn)
    for scales in (cache.key_scales, cache.value_scales):
        if quantised != (scales is not None) or (scales is not None and scales.shape != (pages, kv_heads, PAGE)):
            wanted = f"scales [{pages}, {kv_heads}, {PAGE}]" if quantised else "no scales"
            raise ValueError(f"a {cache.keys.dtype} cache must have {wanted}")
    if cache.keys.dtype not in CACHE_DTYPES:
        raise ValueError(f"a cache may be any of {CACHE_DTYPES}, and is {cache.keys.dtype}")
    if table.dtype != torch.float32 or table.shape[1] != head_dim:
        raise ValueError(f"table must be float32 [positions, {head_dim}]")
    if (weights.q_norm is None) != (weights.k_norm is None):
        raise ValueError("norms must be given for both q and k, or for none")
    if not positions.dtype == slots.dtype == torch.int32 or not positions.shape == slots.shape == (tokens,):
        raise ValueError(f"positions and slots must be int32 [{tokens}]")
    if not all(tensor.is_contiguous() for tensor in (qkv, table, cache.keys, cache.values)):
        raise ValueError("qkv, table, keys and values must be contiguous")
    if tokens == 0:
        return
    keys, values = cache.keys, cache.values
    if keys.dtype == torch.float8_e4m3fn and capability < E4M3_CAPABILITY:  # the kernel makes the bits itself
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    launch = choose(TABLE, capability, 1 if strict else tokens)
    kv_tile = min(launch.kv_tile, next_power_of_2(kv_heads))
    rope_cache_kernel[(tokens, cdiv(kv_heads, kv_tile))](
        qkv, _or(weights.bias, qkv), _or(weights.q_norm, qkv), _or(weights.k_norm, qkv), table, positions, slots,
        keys, values, _or(cache.key_scales, table), _or(cache.value_scales, table), weights.eps,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=PAGE, KV_TILE=kv_tile,
        Q_TILE=next_power_of_2(kv_tile * (heads // kv_heads)), HALF=next_power_of_2(head_dim // 2),
        HAS_BIAS=weights.bias is not None, HAS_NORM=weights.q_norm is not None, num_warps=launch.num_warps,
    )  # fmt: skip


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """A pointer that the kernel will not follow, where there is no tensor."""
    return other if tensor is None else tensor
