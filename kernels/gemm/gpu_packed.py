"""y = x W^T for few rows of x: weights of 4 or 8 bits in fragment order, bfloat16 activations.

The product is computed transposed, with the weights as left operand: their 64 rows fill the tensor core however few
rows x has.

    x          [M, K] bfloat16, rows `stride_x` apart
    packed     [N / 64, K / B, 4096] bytes, B = 128 columns of 4 bits or 64 of 8 (gpu_fragment.py); N padded to 128
    scales     4 bits: of groups of weights, and offsets or minima like them (gpu_groups.py). 8 bits: [N] float32 of
               channels; or [K / 64, N, 64 / group] of groups of 16, 32 or 64, in any float type
    out        [M, N]. The grid is (channel tiles, split, row tiles); parts and counters as gpu_epilogue.py has them,
               or None where K is not split

4-bit weights are scaled in one of two places:
    after      The scale of a group multiplies the group's float32 sum, so the unpacked weights stay exact integers.
    before     TALL: it multiplies the unpacked weight. That costs a rounding (the one that every unpacked weight has)
               and saves the second set of sums: a tile can be twice as tall, so that unpacking its weights is paid by
               twice as many rows, and the tensor core need not stop at the end of a group.

Scales and zero points are loaded one step ahead: they are too narrow for the asynchronous copies that the other loads
become, and would be waited for.
"""

from __future__ import annotations

from ..gpu.language import await_inputs, jit, tl
from ..gpu.prefetch import prefetch
from .gpu_epilogue import finish_tile
from .gpu_fragment import as_halves, as_quarters, as_tile, byte_places, held, unpack_bytes
from .gpu_groups import by_nibble, pair_places, quarters, unpack_groups, w4_places


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
    return tl.dot(held(weights), columns.T, sums, out_dtype=tl.float32)


@jit
def group_product(weights, scale, least, x, row, k, stride_x, M, K, EVEN_K: tl.constexpr):
    """(scale x weights - minimum) times the same columns of x[row]: the minimum takes their sum."""
    columns = rows_of(x, row, M, k, stride_x, K, EVEN_K, weights.shape[1])
    sums = tl.dot(held(weights), columns.T, out_dtype=tl.float32) * scale[:, None]
    if least is not None:
        sums -= least[:, None] * tl.sum(columns.to(tl.float32), 1)[None, :]
    return sums


@jit
def share(blocks):
    """The K blocks [first, last) of this program's part of the split."""
    size = tl.cdiv(blocks, tl.num_programs(1))
    first = tl.program_id(1) * size
    return first, tl.minimum(first + size, blocks)


@jit
def ask_for_blocks(packed, tile_n, k_blocks, first, BLOCKS: tl.constexpr):
    """Prefetch the first four K blocks, 16 KiB of each block of channels, of this program's share of a tile."""
    line = tl.arange(0, BLOCKS * 128)
    tile = packed + tile_n.to(tl.int64) * (k_blocks * BLOCKS * 4096) + line // 128 * (k_blocks * 4096)
    prefetch(tile + 128 * tl.minimum(first * 32 + line % 128, k_blocks * 32 - 1))


@jit
def w4_sums(
    x, packed, scales, offsets, minima, tile_n, row, M, N, K, stride_x, first, last,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
    TALL: tl.constexpr,
):  # fmt: skip
    """[64 BLOCKS, BLOCK_M]: a tile of channels times x[row], over the K blocks [first, last)."""
    k_blocks = tl.cdiv(K, 128)
    places, rows = w4_places(packed, k_blocks, tile_n, GROUPS, BLOCKS)
    pairs = pair_places(tile_n, GROUPS, BLOCKS)
    if TALL:
        rows = pairs
    scale_places = scales + rows
    apart = tl.cdiv(N, 128) * (128 * GROUPS)  # values of a K block in scales, and in offsets

    here = tl.minimum(first, k_blocks - 1) * apart  # the last part may be empty
    scale = tl.load(scale_places + here)
    offset, least = None, None
    if minima is not None:
        minima += rows
        least = tl.load(minima + here)
    if offsets is not None:
        offsets += pairs
        offset = tl.load(offsets + here)
    sums = tl.zeros((64 * BLOCKS, BLOCK_M), tl.float32)
    for k_block in tl.range(first, last, num_stages=STAGES):
        k = k_block * 128
        low, high = unpack_groups(tl.load(places + k_block * 4096), offset, minima, GROUPS, BLOCKS)
        now = scale.to(tl.bfloat16 if TALL and scale.dtype == tl.bfloat16 else tl.float32)
        subtracted = None
        if least is not None:
            subtracted = least.to(tl.float32)
        ahead = tl.minimum(k_block + 1, k_blocks - 1) * apart
        scale = tl.load(scale_places + ahead)
        if offsets is not None:
            offset = tl.load(offsets + ahead)
        if minima is not None:
            least = tl.load(minima + ahead)
        if TALL:
            low_scale, high_scale = by_nibble(now, GROUPS, BLOCKS)
            low, high = low * low_scale, high * high_scale
            if minima is not None:
                low_least, high_least = by_nibble(subtracted, GROUPS, BLOCKS)
                low, high = low - low_least, high - high_least
            low, high = as_tile(low.to(tl.bfloat16), BLOCKS), as_tile(high.to(tl.bfloat16), BLOCKS)
            sums = product(low, sums, x, row, k, stride_x, M, K, EVEN_K)
            sums = product(high, sums, x, row, k + 64, stride_x, M, K, EVEN_K)
        elif GROUPS == 4:
            low0, low1 = as_halves(low, BLOCKS)
            high0, high1 = as_halves(high, BLOCKS)
            scale0, scale1, scale2, scale3 = quarters(now)
            least0, least1, least2, least3 = None, None, None, None
            if minima is not None:
                least0, least1, least2, least3 = quarters(subtracted)
            sums += group_product(low0, scale0, least0, x, row, k, stride_x, M, K, EVEN_K)
            sums += group_product(low1, scale1, least1, x, row, k + 32, stride_x, M, K, EVEN_K)
            sums += group_product(high0, scale2, least2, x, row, k + 64, stride_x, M, K, EVEN_K)
            sums += group_product(high1, scale3, least3, x, row, k + 96, stride_x, M, K, EVEN_K)
        else:
            low, high = as_tile(low, BLOCKS), as_tile(high, BLOCKS)
            left = product(low, None, x, row, k, stride_x, M, K, EVEN_K)
            if GROUPS == 1:
                sums += product(high, left, x, row, k + 64, stride_x, M, K, EVEN_K) * now
            else:
                scale0, scale1 = tl.split(now)
                sums += left * scale0[:, None]
                sums += product(high, None, x, row, k + 64, stride_x, M, K, EVEN_K) * scale1[:, None]
    return sums


@jit
def w8_sums(
    x, packed, scales, tile_n, row, M, N, K, stride_x, first, last,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same of bytes. GROUPS: scales of 64 columns of a channel, 1, 2 or 4; 0: the sums are not scaled yet."""
    k_blocks = tl.cdiv(K, 64)
    places = packed + tile_n.to(tl.int64) * (k_blocks * BLOCKS * 4096) + byte_places(k_blocks * 4096, BLOCKS)
    channel = tile_n * (64 * BLOCKS) + tl.arange(0, 64 * BLOCKS)
    sums = tl.zeros((64 * BLOCKS, BLOCK_M), tl.float32)
    for k_block in tl.range(first, last, num_stages=STAGES):
        weights, k = unpack_bytes(tl.load(places + k_block * 4096)), k_block * 64
        if GROUPS == 0:
            sums = product(as_tile(weights, BLOCKS), sums, x, row, k, stride_x, M, K, EVEN_K)
        else:
            of_block = scales + (k_block * (tl.cdiv(N, 128) * 128) + channel) * GROUPS
            if GROUPS == 4:
                parts = as_quarters(weights, BLOCKS)
                for group in tl.static_range(4):
                    scale = tl.load(of_block + group).to(tl.float32)
                    sums += group_product(parts[group], scale, None, x, row, k + 16 * group, stride_x, M, K, EVEN_K)
            elif GROUPS == 2:
                low, high = as_halves(weights, BLOCKS)
                low_scale, high_scale = tl.load(of_block).to(tl.float32), tl.load(of_block + 1).to(tl.float32)
                sums += group_product(low, low_scale, None, x, row, k, stride_x, M, K, EVEN_K)
                sums += group_product(high, high_scale, None, x, row, k + 32, stride_x, M, K, EVEN_K)
            else:
                scale = tl.load(of_block).to(tl.float32)
                sums += group_product(as_tile(weights, BLOCKS), scale, None, x, row, k, stride_x, M, K, EVEN_K)
    return sums


@jit(do_not_specialize=["M"])
def w4_gemm_kernel(
    x, packed, scales, offsets, minima, bias, residual, out, parts, counters, M, N, K, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
    TALL: tl.constexpr, MOST_PARTS: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    tile_n = tl.program_id(0)
    first, last = share(tl.cdiv(K, 128))
    ask_for_blocks(packed, tile_n, tl.cdiv(K, 128), first, BLOCKS)
    await_inputs()
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = w4_sums(
        x, packed, scales, offsets, minima, tile_n, row, M, N, K, stride_x, first, last,
        GROUPS, EVEN_K, BLOCK_M, BLOCKS, STAGES, TALL,
    )  # fmt: skip
    finish_tile(
        sums, out, parts, counters, None, None, bias, residual, row, tile_n * (64 * BLOCKS), M, N,
        False, False, MOST_PARTS, SLICE,
    )  # fmt: skip


@jit(do_not_specialize=["M"])
def w8_gemm_kernel(
    x, packed, scales, bias, residual, out, parts, counters, M, N, K, stride_x,
    GROUPS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
    MOST_PARTS: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    tile_n = tl.program_id(0)
    first, last = share(tl.cdiv(K, 64))
    ask_for_blocks(packed, tile_n, tl.cdiv(K, 64), first, BLOCKS)
    await_inputs()
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = w8_sums(
        x, packed, scales, tile_n, row, M, N, K, stride_x, first, last, GROUPS, EVEN_K, BLOCK_M, BLOCKS, STAGES
    )
    finish_tile(
        sums, out, parts, counters, None, scales if GROUPS == 0 else None, bias, residual,
        row, tile_n * (64 * BLOCKS), M, N, False, True, MOST_PARTS, SLICE,
    )  # fmt: skip
