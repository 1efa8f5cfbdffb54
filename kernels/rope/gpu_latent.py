"""Latent attention's pass before the scores: the norm of the latent vector, both rotations, KV-cache write.

    row         [T, RANK + ROPE_DIM] of the projection: the latent vector, then the key that all heads share
    queries     [T, heads, plain_dim + ROPE_DIM]: what is rotated comes last
    cache       [pages, 1, 64, RANK + ROPE_DIM]: the normalised vector, and behind it the rotated key
    q           [T, heads, RANK + ROPE_DIM]: the last part of each head, rotated, is written here; the first is a
                product's (gemm/gpu_heads.py)

A program is one token. A token with a negative slot is padding and is not cached. The launcher checks and launches; it
allocates nothing.
"""

from __future__ import annotations

import torch

from ..gpu.language import await_inputs, jit, next_power_of_2, tl
from ..gpu.operand import need
from ..gpu.table import PAGE_TOKENS

Tensor = torch.Tensor
WARPS = 4  # compiled, 128 heads of 64 rotated values: at most 72 registers, no spills; not measured


@jit
def turned(place, live, cos, sin, HALF_DIM: tl.constexpr):
    """Both halves of rows of HALF_DIM pairs from `place` on, rotated."""
    low = tl.load(place, mask=live, other=0.0).to(tl.float32)
    high = tl.load(place + HALF_DIM, mask=live, other=0.0).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@jit
def latent_cache_kernel(
    row, queries, norm, table, positions, slots, cache, q, row_stride, query_stride, eps,
    HEADS: tl.constexpr, RANK: tl.constexpr, PLAIN_DIM: tl.constexpr, HALF_DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr, RANK_TILE: tl.constexpr, HALF_TILE: tl.constexpr,
):  # fmt: skip
    await_inputs()
    token = tl.program_id(0).to(tl.int64)
    ROPE_DIM: tl.constexpr = 2 * HALF_DIM
    ROW: tl.constexpr = RANK + ROPE_DIM
    dim, pair, head = tl.arange(0, RANK_TILE), tl.arange(0, HALF_TILE), tl.arange(0, HEAD_TILE)[:, None]
    is_pair = pair < HALF_DIM
    angles = table + tl.load(positions + token).to(tl.int64) * ROPE_DIM + pair
    cos, sin = tl.load(angles, mask=is_pair, other=0.0), tl.load(angles + HALF_DIM, mask=is_pair, other=0.0)

    slot = tl.load(slots + token)
    row += token * row_stride
    entry = cache + slot.to(tl.int64) * ROW
    written, pairs = dim < tl.where(slot >= 0, RANK, 0), pair < tl.where(slot >= 0, HALF_DIM, 0)
    vector = tl.load(row + dim, mask=dim < RANK, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(vector * vector, 0) / RANK + eps)
    vector *= inverse * tl.load(norm + dim, mask=dim < RANK, other=0.0).to(tl.float32)
    tl.store(entry + dim, vector.to(cache.dtype.element_ty), mask=written)
    low, high = turned(row + RANK + pair, is_pair, cos, sin, HALF_DIM)
    tl.store(entry + RANK + pair, low.to(cache.dtype.element_ty), mask=pairs)
    tl.store(entry + RANK + HALF_DIM + pair, high.to(cache.dtype.element_ty), mask=pairs)

    live = (head < HEADS) & is_pair[None, :]
    place = queries + token * query_stride + head * (PLAIN_DIM + ROPE_DIM) + PLAIN_DIM + pair[None, :]
    low, high = turned(place, live, cos[None, :], sin[None, :], HALF_DIM)
    out = q + (token * HEADS + head) * ROW + RANK + pair[None, :]
    tl.store(out, low.to(q.dtype.element_ty), mask=live)
    tl.store(out + HALF_DIM, high.to(q.dtype.element_ty), mask=live)


def latent_cache(
    row: Tensor, queries: Tensor, norm: Tensor, eps: float, table: Tensor, positions: Tensor, slots: Tensor,
    cache: Tensor, q: Tensor,
) -> None:  # fmt: skip
    """Fill the slots of the cache, and of q what is rotated. Rows of `row` and of `queries` may have strides.

    table float32 [positions, rope_dim]: cosines, then sines. positions and slots int32 [T]; a slot is page * 64 +
    offset, negative for padding, whose position must still be one of the table.
    """
    (tokens, row_dim), (_, heads, _), (pages, *_), rope_dim = row.shape, q.shape, cache.shape, table.shape[1]
    rank, plain_dim = row_dim - rope_dim, queries.shape[1] // heads - rope_dim
    if rope_dim % 2 or rank <= 0 or plain_dim < 0 or queries.shape != (tokens, heads * (plain_dim + rope_dim)):
        raise ValueError(f"rows {list(row.shape)} and queries {list(queries.shape)} do not go with {heads} heads "
                         f"of which {rope_dim} dimensions turn")  # fmt: skip
    if row.stride(1) != 1 or queries.stride(1) != 1:
        raise ValueError("the rows of the projection must be contiguous")
    need("norm", norm, norm.dtype, rank)
    need("table", table, torch.float32, *table.shape)
    need("positions", positions, torch.int32, tokens)
    need("slots", slots, torch.int32, tokens)
    need("cache", cache, cache.dtype, pages, 1, PAGE_TOKENS, row_dim)
    need("q", q, q.dtype, tokens, heads, row_dim)
    if tokens:
        latent_cache_kernel[(tokens,)](
            row, queries, norm, table, positions, slots, cache, q, row.stride(0), queries.stride(0), eps,
            HEADS=heads, RANK=rank, PLAIN_DIM=plain_dim, HALF_DIM=rope_dim // 2, HEAD_TILE=next_power_of_2(heads),
            RANK_TILE=next_power_of_2(rank), HALF_TILE=next_power_of_2(rope_dim // 2), num_warps=WARPS,
        )  # fmt: skip
