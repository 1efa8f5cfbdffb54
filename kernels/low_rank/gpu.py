"""What LoRA adapters add to a projection on the GPU, different adapters in one batch: out[t] += B[s] A[s] x[t] with s
the adapter of row t.

    x         [T, K] bfloat16 or float32, or e4m3 or int8 with a float32 scale per row; rows may lie further apart
    adapters  int32 [T]: the place of each row's adapter in a and b, -1 for a row without one. It is read on the device,
              so a captured graph serves any mix
    a, b      [places, parts * rank, K] and [places, N, rank], places any number of values apart; bfloat16, or float32
              as x. b includes the adapter's scale. A projection that merges matrices (query, key, value) has a part for
              each, which are together the N channels
    workspace float32 of at least `low_rank_floats`: A x of every row

Rows are taken in tiles of 16, the least that a tensor core takes. A tile has a program for each of its rows: the first
row of an adapter works for all rows of that adapter in the tile, the others end at once. So weights are read once per
tile and adapter, nothing is sorted, and all adapters of a tile run at the same time. A row's bits do not depend on the
others: neither K's split nor a tile's shape does. The idea of two grouped products is Punica's (arXiv:2310.18547) and
S-LoRA's (arXiv:2311.03285).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..gpu.language import await_inputs, cdiv, jit, tl

ROWS = 16
SPLIT_K = 2048  # columns of K per program: a longer sum is split, or few rows would leave most of the GPU idle
# Columns of K and channels of a block, warps, stages: compiled without spills for rank 16; not measured. float32 has no
# tensor core's product, and a thread holds its rows and columns of both operands.
TILE, FLOAT32_TILE = (128, 64, 2, 4), (32, 32, 4, 2)


@jit
def shared_rows(adapters, tokens, ROWS: tl.constexpr):
    """This program's tile of rows, which of them have its adapter, the adapter, and whether the program has any."""
    place = tl.arange(0, ROWS)
    row = tl.program_id(0) * ROWS + place
    numbers = tl.load(adapters + row, mask=row < tokens, other=-1)
    member = tl.program_id(1)
    own = tl.max(tl.where(place == member, numbers, -1), 0)
    same = numbers == own
    leads = (own >= 0) & (tl.min(tl.where(same, place, ROWS), 0) == member)
    return row, same, own, leads


@jit(do_not_specialize=["tokens"])
def shrink_kernel(
    x, x_scales, adapters, a, sums, tokens, K, stride_x, stride_a,
    RANK: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, EVEN_K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, ROWS, PARTS * SPLITS): sums[split, t, part * RANK + r] = A[part][r] x[t] over a split of K."""
    await_inputs()
    row, same, own, leads = shared_rows(adapters, tokens, ROWS)
    if leads:
        part, split = tl.program_id(2) % PARTS, tl.program_id(2) // PARTS
        rank = tl.arange(0, RANK)
        values = x + row.to(tl.int64)[:, None] * stride_x
        weights = a + own.to(tl.int64) * stride_a + (part * RANK + rank)[:, None] * K
        blocks = tl.cdiv(K, BLOCK_K)
        each = tl.cdiv(blocks, SPLITS)
        total = tl.zeros((ROWS, RANK), tl.float32)
        for block in tl.range(split * each, tl.minimum(split * each + each, blocks), num_stages=STAGES):
            column = block * BLOCK_K + tl.arange(0, BLOCK_K)
            wanted, known = same[:, None], (rank < RANK)[:, None]
            if not EVEN_K:
                wanted, known = wanted & (column < K)[None, :], known & (column < K)[None, :]
            left = tl.load(values + column[None, :], mask=wanted, other=0.0).to(a.dtype.element_ty)
            right = tl.load(weights + column[None, :], mask=known, other=0.0)
            total = tl.dot(left, right.T, total, out_dtype=tl.float32, input_precision="ieee")
        if x_scales is not None:
            total *= tl.load(x_scales + row, mask=same, other=0.0)[:, None]
        target = ((split.to(tl.int64) * tokens + row) * PARTS + part)[:, None] * RANK + rank[None, :]
        tl.store(sums + target, total, mask=same[:, None])


@jit(do_not_specialize=["tokens"])
def expand_kernel(
    sums, adapters, b, out, tokens, N, stride_b, FIRST, OTHER,
    RANK: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, ROWS, blocks of channels): out += the sums' splits, added in order, times B.

    The first part has FIRST channels, each further one OTHER. No block has channels of two parts.
    """
    await_inputs()
    row, same, own, leads = shared_rows(adapters, tokens, ROWS)
    if leads:
        block, part, begin, end = tl.program_id(2), 0, 0, FIRST
        if PARTS > 1:
            beyond = block - tl.cdiv(FIRST, BLOCK_N)
            if beyond >= 0:
                part = 1 + beyond // tl.cdiv(OTHER, BLOCK_N)
                block = beyond % tl.cdiv(OTHER, BLOCK_N)
                begin = FIRST + (part - 1) * OTHER
                end = begin + OTHER
        rank, channel = tl.arange(0, RANK), begin + block * BLOCK_N + tl.arange(0, BLOCK_N)
        small = tl.zeros((ROWS, RANK), tl.float32)
        for split in tl.static_range(SPLITS):
            place = ((split * tokens.to(tl.int64) + row) * PARTS + part)[:, None] * RANK + rank[None, :]
            small += tl.load(sums + place, mask=same[:, None], other=0.0)
        weights = tl.load(
            b + own.to(tl.int64) * stride_b + channel[:, None] * RANK + rank[None, :],
            mask=(channel < end)[:, None],
            other=0.0,
        )
        added = tl.dot(small.to(weights.dtype), weights.T, out_dtype=tl.float32, input_precision="ieee")
        target = out + row.to(tl.int64)[:, None] * N + channel[None, :]
        inside = same[:, None] & (channel < end)[None, :]
        before = tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, (before + added).to(out.dtype.element_ty), mask=inside)


def splits_of(columns: int) -> int:
    """Into how many parts the sum over K is split: it depends on nothing else, so bits do not either."""
    return cdiv(columns, SPLIT_K)


def low_rank_floats(tokens: int, columns: int, parts: int, rank: int) -> int:
    return splits_of(columns) * tokens * parts * rank


def low_rank(
    x: torch.Tensor,
    adapters: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor,
    *,
    parts: Sequence[int],
    x_scales: torch.Tensor | None = None,
) -> None:
    """Add each row's adapter to out [T, N]. `parts`: channels of each, all but the first alike.

    The rank is a power of two, at least 16; smaller ones are filled up with zeros.
    """
    (tokens, columns), (places, channels, rank) = x.shape, b.shape
    if rank < ROWS or rank & (rank - 1):
        raise ValueError(f"rank {rank}: expected a power of two of at least {ROWS}; fill up with zeros")
    if len(set(parts[1:])) > 1 or sum(parts) != channels:
        raise ValueError(f"parts {tuple(parts)}: expected {channels} channels in all, all but the first alike")
    if a.shape != (places, len(parts) * rank, columns) or out.shape != (tokens, channels) or len(adapters) != tokens:
        raise ValueError(f"a is {tuple(a.shape)} and out {tuple(out.shape)}, which do not fit x and b")
    if x.stride(1) != 1 or not all(tensor.is_contiguous() for tensor in (adapters, a[0], b[0], out)):
        raise ValueError("the rows of x, the places of a and b, and the other tensors must be contiguous")
    wide = torch.float32 if x.dtype == torch.float32 else torch.bfloat16
    if adapters.dtype != torch.int32 or {a.dtype, b.dtype, out.dtype} != {wide}:
        raise ValueError(f"expected int32 adapters and {wide} a, b and out")
    if workspace.numel() < low_rank_floats(tokens, columns, len(parts), rank) or workspace.dtype != torch.float32:
        raise ValueError(f"the workspace needs {low_rank_floats(tokens, columns, len(parts), rank)} float32")
    if tokens == 0:
        return
    block_k, block_n, warps, stages = FLOAT32_TILE if x.dtype == torch.float32 else TILE
    splits, tiles, other = splits_of(columns), cdiv(tokens, ROWS), parts[-1]
    shrink_kernel[(tiles, ROWS, len(parts) * splits)](
        x, x_scales, adapters, a, workspace, tokens, columns, x.stride(0), a.stride(0),
        RANK=rank, PARTS=len(parts), SPLITS=splits, EVEN_K=columns % block_k == 0,
        ROWS=ROWS, BLOCK_K=block_k, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    blocks = cdiv(parts[0], block_n) + (len(parts) - 1) * cdiv(other, block_n)
    expand_kernel[(tiles, ROWS, blocks)](
        workspace, adapters, b, out, tokens, channels, b.stride(0), parts[0], other,
        RANK=rank, PARTS=len(parts), SPLITS=splits, ROWS=ROWS, BLOCK_N=block_n, num_warps=warps,
    )  # fmt: skip
