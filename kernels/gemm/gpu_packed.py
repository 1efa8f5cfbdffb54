"""y = x W^T for few rows of x: weights of 4 or 8 bits in fragment order, bfloat16 activations.

The product is computed transposed, with the weights as left operand: their 64 rows fill the tensor core however few
rows x has.

    x          [M, K] bfloat16, rows `stride_x` apart
    packed     [N / 64, K / B, 4096] bytes, B = 128 columns of 4 bits or 64 of 8 (gpu_fragment.py); N padded to 128
    scales     4 bits: bfloat16, of groups of weights, and offsets like them (gpu_groups.py); 8 bits: [N] float32
    out        [M, N], or [split, M, N] float32 to be reduced. The grid is (channel tiles, split, row tiles).

4-bit weights are scaled in one of two places:
    after      The scale of a group multiplies the group's float32 sum, so the unpacked weights stay exact integers.
    before     TALL: it multiplies the unpacked weight. That costs a rounding (the one that every unpacked weight has)
               and saves the second set of sums: a tile can be twice as tall, so that unpacking its weights is paid by
               twice as many rows, and the tensor core need not stop at the end of a group.

Scales and zero points are loaded one step ahead: they are too narrow for the asynchronous copies that the other loads
become, and would be waited for.
"""

from __future__ import annotations

from ..gpu.language import jit, tl
from .gpu_epilogue import store_result
from .gpu_fragment import as_halves, as_tile, byte_places, unpack_bytes
from .gpu_groups import by_nibble, pair_places, unpack_groups, w4_places


@jit
def rows_of(matrix, row, rows, k, stride, K, EVEN_K: tl.constexpr, WIDTH: tl.constexpr):
    """matrix[row, k : k + WIDTH], zero outside."""
    column = k + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None]
    if not EVEN_K:
        inside = inside & (column < K)[None, :]
    return tl.load(matrix + row.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0)


@jit
def product(weights, sums, x, row, k, stride_x, M, K, EVEN_K: tl.constexpr):
    """sums (or nothing) + weights times the same columns, from k on, of x[row], which is zero outside of x."""
    columns = rows_of(x, row, M, k, stride_x, K, EVEN_K, weights.shape[1])
    return tl.dot(weights, columns.T, sums, out_dtype=tl.float32)


@jit
def share(blocks):
    """The K blocks [first, last) of this program's part of the split."""
    size = tl.cdiv(blocks, tl.num_programs(1))
    first = tl.program_id(1) * size
    return first, tl.minimum(first + size, blocks)


@jit(do_not_specialize=["M"])
def w4_gemm_kernel(
    x, packed, scales, offsets, bias, residual, out, M, N, K, padded_n, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
    TALL: tl.constexpr,
):  # fmt: skip
    tile_n = tl.program_id(0)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_blocks = tl.cdiv(K, 128)
    first, last = share(k_blocks)
    places, scale_places = w4_places(packed, scales, k_blocks, tile_n, GROUPS, BLOCKS)
    pairs = pair_places(tile_n, GROUPS, BLOCKS)
    if TALL:
        scale_places = scales + pairs
    apart = padded_n * GROUPS  # values of a K block in scales, and in offsets

    here = tl.minimum(first, k_blocks - 1) * apart  # the last part may be empty
    scale = tl.load(scale_places + here)
    offset = None
    if offsets is not None:
        offsets += pairs
        offset = tl.load(offsets + here)
    sums = tl.zeros((64 * BLOCKS, BLOCK_M), tl.float32)
    for k_block in tl.range(first, last, num_stages=STAGES):
        k = k_block * 128
        low, high = unpack_groups(tl.load(places + k_block * 4096), offset, GROUPS, BLOCKS)
        now = scale.to(tl.bfloat16 if TALL else tl.float32)
        ahead = tl.minimum(k_block + 1, k_blocks - 1) * apart
        scale = tl.load(scale_places + ahead)
        if offsets is not None:
            offset = tl.load(offsets + ahead)
        if TALL:
            low_scale, high_scale = by_nibble(now, GROUPS, BLOCKS)
            sums = product(as_tile(low * low_scale, BLOCKS), sums, x, row, k, stride_x, M, K, EVEN_K)
            sums = product(as_tile(high * high_scale, BLOCKS), sums, x, row, k + 64, stride_x, M, K, EVEN_K)
        elif GROUPS == 4:
            low0, low1 = as_halves(low, BLOCKS)
            high0, high1 = as_halves(high, BLOCKS)
            step0, step1 = tl.split(tl.reshape(now, (64 * BLOCKS, 2, 2)))
            scale0, scale2 = tl.split(step0)
            scale1, scale3 = tl.split(step1)
            sums += product(low0, None, x, row, k, stride_x, M, K, EVEN_K) * scale0[:, None]
            sums += product(low1, None, x, row, k + 32, stride_x, M, K, EVEN_K) * scale1[:, None]
            sums += product(high0, None, x, row, k + 64, stride_x, M, K, EVEN_K) * scale2[:, None]
            sums += product(high1, None, x, row, k + 96, stride_x, M, K, EVEN_K) * scale3[:, None]
        else:
            low, high = as_tile(low, BLOCKS), as_tile(high, BLOCKS)
            left = product(low, None, x, row, k, stride_x, M, K, EVEN_K)
            if GROUPS == 1:
                sums += product(high, left, x, row, k + 64, stride_x, M, K, EVEN_K) * now
            else:
                scale0, scale1 = tl.split(now)
                sums += left * scale0[:, None]
                sums += product(high, None, x, row, k + 64, stride_x, M, K, EVEN_K) * scale1[:, None]
    channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
    part = out + tl.program_id(1).to(tl.int64) * M * N
    store_result(part, sums, row[None, :], channel[:, None], M, N, bias, residual)


@jit(do_not_specialize=["M"])
def w8_gemm_kernel(
    x, packed, scales, bias, residual, out, M, N, K, stride_x,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile_n = tl.program_id(0)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    k_blocks = tl.cdiv(K, 64)
    first, last = share(k_blocks)
    places = packed + tile_n.to(tl.int64) * (k_blocks * BLOCKS * 4096) + byte_places(k_blocks * 4096, BLOCKS)
    sums = tl.zeros((64 * BLOCKS, BLOCK_M), tl.float32)
    for k_block in tl.range(first, last, num_stages=STAGES):
        weights = as_tile(unpack_bytes(tl.load(places + k_block * 4096)), BLOCKS)
        sums = product(weights, sums, x, row, k_block * 64, stride_x, M, K, EVEN_K)
    channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
    sums *= tl.load(scales + channel)[:, None]
    part = out + tl.program_id(1).to(tl.int64) * M * N
    store_result(part, sums, row[None, :], channel[:, None], M, N, bias, residual)
