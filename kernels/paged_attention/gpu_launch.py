"""Paged attention on the GPU: one operation for the prompt chunks and decode rows of a ragged batch.

    launch = choose_launch(capability, head_dim, cache_bytes, sequences, tokens, ...)  once for a bucket
    plan_attention(starts, lengths, plan, ...)                                         once a step and window
    paged_attention(q, keys, values, ..., plan, workspace)                             every layer

All tensors live on one device; the caller owns plan and workspace, whose sizes `plan_words` and `workspace_floats`
tell. Grids depend on shapes alone and nothing is allocated, so a CUDA graph can capture both calls. Rows of `out` that
belong to no chunk are left as they were.

A strict launch gives a row the same bits whatever else is in the batch and however many programs there are. Prefill
gives them however a prompt is cut, too, but decode (chunks of one token) adds up in another order: where a prompt's
bits must not depend on the cuts, no chunk of a longer prompt may be a single token.

Latent attention has one cached row for all heads: keys and values are one tensor [pages, 1, 64, head_dim + rope_dim],
q has as many values a head, out head_dim. `kv_heads` is then in how many parts the heads are cut (`head_tiles`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..gpu.language import next_power_of_2
from ..gpu.table import PAGE_TOKENS
from .gpu_decode import decode_kernel
from .gpu_plan import HEADER, RECORD, plan_kernel
from .gpu_prefill import prefill_kernel
from .gpu_table import (
    STRICT_SPLITS,
    AttentionLaunch,
    group_rows,
    padded_head,
    query_rows,
    reduced_at_once,
)

LOG2_E = 1.0 / math.log(2.0)
CACHE_DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8)
SCALED_DTYPES = (torch.float8_e4m3fn, torch.int8)


def plan_words(sequences: int, kv_heads: int, launch: AttentionLaunch) -> int:
    """int32 elements of a plan."""
    return int(HEADER) + (int(RECORD) + kv_heads) * sequences + launch.programs(kv_heads)


def workspace_floats(sequences: int, heads: int, kv_heads: int, head_dim: int, launch: AttentionLaunch) -> int:
    """float32 elements of the workspace: the partial results of split sequences, for any lengths."""
    return _slots(sequences, kv_heads, launch) * heads * (head_dim + 2)


def _slots(sequences: int, kv_heads: int, launch: AttentionLaunch) -> int:
    slots = sequences * STRICT_SPLITS if launch.strict else sequences + launch.programs(kv_heads)
    return -(-slots // 4) * 4  # whole 16 bytes, so that every part of the workspace is aligned for any bucket


def plan_attention(
    starts: Tensor, lengths: Tensor, plan: Tensor, *, kv_heads: int, launch: AttentionLaunch, window: int = 0
) -> None:
    """Share the pages that decode rows see among the programs. For every layer of that window (0: no window)."""
    sequences = len(lengths)
    _require_size("plan", plan, torch.int32, plan_words(sequences, kv_heads, launch))
    plan_kernel[(1,)](
        starts, lengths, plan, sequences, window,
        PROGRAMS=launch.programs(kv_heads), LEAST_SHARE=launch.decode.least_share,
        BLOCK=next_power_of_2(max(sequences, 16)), WINDOWED=window > 0, KV_HEADS=kv_heads, num_warps=4,
    )  # fmt: skip


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, lengths: Tensor, block_tables: Tensor, out: Tensor, *,
    heads: int, kv_heads: int, scale: float, plan: Tensor, workspace: Tensor, launch: AttentionLaunch,
    longest_chunk: int, window: int = 0, soft_cap: float = 0.0, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None, sinks: Tensor | None = None, rope_dim: int = 0,
) -> None:  # fmt: skip
    """q [T, at least heads * head_dim] (a qkv projection's rows will do), out [T, heads, head_dim].

    `longest_chunk`: an upper bound of a chunk's tokens, which the host knows; 1 leaves prefill out. `plan` is of the
    same starts, lengths, window and launch. sinks float32 [heads]: one more score of each head, of no key.
    rope_dim: of rotated keys behind latent vectors; 0: there are none.
    """
    sequences, head_dim = len(lengths), keys.shape[-1] - rope_dim
    _check(q, keys, values, starts, block_tables, out, heads, kv_heads, sequences, launch.prefill.rows, rope_dim)
    _check_scales(keys, key_scales, value_scales)
    if sinks is not None and (sinks.dtype != torch.float32 or sinks.shape != (heads,)):
        raise ValueError(f"sinks are {list(sinks.shape)} {sinks.dtype}: give float32 [{heads}]")
    if scale <= 0:
        raise ValueError(f"scale is {scale}: it must be positive")
    _require_size("plan", plan, torch.int32, plan_words(sequences, kv_heads, launch))
    needed = workspace_floats(sequences, heads, kv_heads, head_dim, launch)
    _require_size("workspace", workspace, torch.float32, needed)

    code = None
    if keys.dtype in SCALED_DTYPES:
        code = "int8" if keys.dtype == torch.int8 else "e4m3 bits" if launch.e4m3_bits else "e4m3"
        keys, values = keys.view(torch.int16), values.view(torch.int16)  # two codes at a time: gpu_codes.py
    factor, cap = scale * LOG2_E, 0.0
    if soft_cap > 0:
        factor, cap = 2.0 * factor / soft_cap, soft_cap * LOG2_E
    padded = padded_head(head_dim) if code is None else max(32, padded_head(head_dim))  # a product takes 16 or more
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "PADDED_DIM": padded}
    variant = sizes | {
        "ROPE_DIM": rope_dim, "PADDED_ROPE": padded_head(rope_dim) if rope_dim else 0,
        "WINDOWED": window > 0, "SOFT_CAPPED": soft_cap > 0, "CODE": code,
    }  # fmt: skip
    width = block_tables.shape[1]
    if longest_chunk > 1:
        prefill = launch.prefill
        tiles = len(q) // (prefill.rows // (heads // kv_heads)) + sequences
        prefill_kernel[(kv_heads, tiles)](
            q, *_pages(keys, values, prefill.descriptors), key_scales, value_scales, sinks, starts, lengths,
            block_tables, out, q.stride(0), width, sequences, window, factor, cap,
            **variant, ROWS=prefill.rows, DESCRIPTORS=prefill.descriptors,
            num_warps=prefill.warps, num_stages=prefill.stages,
        )  # fmt: skip
    decode, together = launch.decode, group_rows(heads, kv_heads)
    slots = _slots(sequences, kv_heads, launch)
    partials = workspace[: slots * heads * head_dim]
    maxima, totals = workspace[partials.numel() : needed].view(2, slots * heads)
    decode_kernel[(launch.programs(kv_heads), kv_heads)](
        q, *_pages(keys, values, decode.descriptors), key_scales, value_scales, sinks, starts, lengths, block_tables,
        plan, partials, maxima, totals, out, q.stride(0), width, sequences, window, factor, cap,
        **variant, ROWS=query_rows(heads, kv_heads), DESCRIPTORS=decode.descriptors, STRICT=launch.strict,
        SPLITS=STRICT_SPLITS, LEAST_SHARE=decode.least_share,
        GROUP_ROWS=together, PARTS_AT_ONCE=reduced_at_once(together, padded),
        num_warps=decode.warps, num_stages=decode.stages,
    )  # fmt: skip


def _pages(keys: Tensor, values: Tensor, descriptors: bool) -> tuple[Any, Any]:  # Any: tensors or descriptors
    if not descriptors:
        return keys, values
    from triton.tools.tensor_descriptor import TensorDescriptor

    size = keys.shape[-1]
    block = [PAGE_TOKENS, padded_head(size)]
    of_keys, of_values = (TensorDescriptor.from_tensor(cache.view(-1, size), block) for cache in (keys, values))
    return of_keys, of_values


def _require_size(name: str, tensor: Tensor, dtype: torch.dtype, elements: int) -> None:
    if tensor.dtype != dtype or tensor.dim() != 1 or len(tensor) < elements:
        raise ValueError(f"{name} is {list(tensor.shape)} {tensor.dtype}: give [{elements}] or more of {dtype}")


def _check(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, tables: Tensor, out: Tensor,
    heads: int, kv_heads: int, sequences: int, rows: int, rope_dim: int,
) -> None:  # fmt: skip
    pages, _, _, row_dim = keys.shape
    head_dim, regions = row_dim - rope_dim, 1 if rope_dim else kv_heads
    if rope_dim and (values is not keys or keys.dtype in SCALED_DTYPES):
        raise ValueError("latent vectors and their rotated keys are one tensor, of keys and values, and have no scales")
    if heads % kv_heads:
        raise ValueError(f"heads {heads} is no multiple of kv_heads {kv_heads}")
    if heads // kv_heads > rows:
        raise ValueError(f"heads {heads} over kv_heads {kv_heads}: a tile holds groups of {rows} heads at most")
    if keys.shape != (pages, regions, PAGE_TOKENS, row_dim) or values.shape != keys.shape:
        raise ValueError(f"keys {list(keys.shape)} and values {list(values.shape)} must both be "
                         f"[pages, {regions}, {PAGE_TOKENS}, head_dim]")  # fmt: skip
    if keys.dtype not in CACHE_DTYPES or values.dtype != keys.dtype:
        raise ValueError(f"keys {keys.dtype} and values {values.dtype} must be one of {CACHE_DTYPES}")
    if not (keys.is_contiguous() and values.is_contiguous() and out.is_contiguous()):
        raise ValueError("keys, values and out must be contiguous")
    if out.shape != (len(q), heads, head_dim):
        raise ValueError(f"out is {list(out.shape)}, must be {[len(q), heads, head_dim]}")
    if q.stride(-1) != 1 or q.shape[1:].numel() < heads * row_dim:
        raise ValueError(f"q {list(q.shape)} must hold {heads} heads of {row_dim} side by side in each row")
    if pages * kv_heads * PAGE_TOKENS >= 2**31:
        raise ValueError(f"{pages} pages of {kv_heads} kv heads: rows are counted in int32, keep them below 2**31")
    if len(starts) != sequences + 1 or len(tables) != sequences:
        raise ValueError(f"{sequences} lengths need {sequences + 1} starts and {sequences} rows of block_tables, "
                         f"given {len(starts)} and {len(tables)}")  # fmt: skip


def _check_scales(keys: Tensor, key_scales: Tensor | None, value_scales: Tensor | None) -> None:
    scaled = keys.dtype in SCALED_DTYPES
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if (scales is not None) != scaled:
            raise ValueError(f"{name}: a {keys.dtype} cache {'needs' if scaled else 'takes no'} scales")
        if scales is not None and (scales.shape != keys.shape[:3] or scales.dtype != torch.float32):
            raise ValueError(f"{name} is {list(scales.shape)} {scales.dtype}: give float32 {list(keys.shape[:3])}")
