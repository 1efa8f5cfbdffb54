"""Unpacks 4-bit or 8-bit weights to rows of bfloat16, for the vendor's GEMM when x has many rows.

A program writes 64 rows x 128 (4 bits) or 64 (8 bits) columns. The product of integer and scale is formed in float32
and rounded once.
"""

from __future__ import annotations

from ..gpu.language import await_inputs, jit, tl
from .gpu_fragment import as_halves, as_quarters, as_tile, byte_places, unpack_bytes
from .gpu_groups import pair_places, quarters, unpack_groups, w4_places


@jit
def store_columns(out, values, row, k, first_row, N, K, WIDTH: tl.constexpr):
    """out[row - first_row, k : k + WIDTH] = values."""
    column = k + tl.arange(0, WIDTH)
    inside = (row < N)[:, None] & (column < K)[None, :]
    place = out + (row - first_row).to(tl.int64)[:, None] * K + column[None, :]
    tl.store(place, values.to(out.dtype.element_ty), mask=inside)


@jit
def w4_dequantise_kernel(packed, scales, offsets, minima, out, first_row, N, K, padded_n, GROUPS: tl.constexpr):
    """out [rows, K] = rows first_row ... of the weights; the grid is (row blocks, K blocks)."""
    await_inputs()
    tile_n = first_row // 64 + tl.program_id(0)
    k_block = tl.program_id(1)
    places, rows = w4_places(packed, tl.num_programs(1), tile_n, GROUPS, 1)
    apart = padded_n * GROUPS
    offset = None
    if offsets is not None:
        offset = tl.load(offsets + pair_places(tile_n, GROUPS, 1) + k_block * apart)
    low, high = unpack_groups(tl.load(places + k_block * 4096), offset, minima, GROUPS, 1)
    scale = tl.load(scales + rows + k_block * apart).to(tl.float32)
    row = tile_n * 64 + tl.arange(0, 64)
    k = k_block * 128
    if GROUPS == 4:
        low0, low1 = as_halves(low, 1)
        high0, high1 = as_halves(high, 1)
        scale0, scale1, scale2, scale3 = quarters(scale)
        low0, low1 = low0.to(tl.float32) * scale0[:, None], low1.to(tl.float32) * scale1[:, None]
        high0, high1 = high0.to(tl.float32) * scale2[:, None], high1.to(tl.float32) * scale3[:, None]
        if minima is not None:
            least0, least1, least2, least3 = quarters(tl.load(minima + rows + k_block * apart).to(tl.float32))
            low0, low1 = low0 - least0[:, None], low1 - least1[:, None]
            high0, high1 = high0 - least2[:, None], high1 - least3[:, None]
        store_columns(out, low0, row, k, first_row, N, K, 32)
        store_columns(out, low1, row, k + 32, first_row, N, K, 32)
        store_columns(out, high0, row, k + 64, first_row, N, K, 32)
        store_columns(out, high1, row, k + 96, first_row, N, K, 32)
    else:
        low_scale, high_scale = scale, scale
        if GROUPS == 2:
            below, above = tl.split(scale)
            low_scale, high_scale = below[:, None], above[:, None]
        store_columns(out, as_tile(low, 1).to(tl.float32) * low_scale, row, k, first_row, N, K, 64)
        store_columns(out, as_tile(high, 1).to(tl.float32) * high_scale, row, k + 64, first_row, N, K, 64)


@jit
def w8_dequantise_kernel(packed, scales, out, first_row, N, K, padded_n, GROUPS: tl.constexpr):
    """The same for bytes, whose scales are per row, or one, two or four (GROUPS) for 64 columns of it."""
    await_inputs()
    tile_n = first_row // 64 + tl.program_id(0)
    k_block = tl.program_id(1)
    start = packed + (tile_n.to(tl.int64) * tl.num_programs(1) + k_block) * 4096
    row = tile_n * 64 + tl.arange(0, 64)
    values = unpack_bytes(tl.load(start + byte_places(4096, 1)))
    k = k_block * 64
    of_block = scales + (k_block * padded_n + row) * GROUPS
    if GROUPS == 4:
        part0, part1, part2, part3 = as_quarters(values, 1)
        parts = (part0, part1, part2, part3)
        for group in tl.static_range(4):
            scaled = parts[group].to(tl.float32) * tl.load(of_block + group).to(tl.float32)[:, None]
            store_columns(out, scaled, row, k + 16 * group, first_row, N, K, 16)
    elif GROUPS == 2:
        low, high = as_halves(values, 1)
        low = low.to(tl.float32) * tl.load(of_block).to(tl.float32)[:, None]
        high = high.to(tl.float32) * tl.load(of_block + 1).to(tl.float32)[:, None]
        store_columns(out, low, row, k, first_row, N, K, 32)
        store_columns(out, high, row, k + 32, first_row, N, K, 32)
    else:
        scale = tl.load(of_block if GROUPS == 1 else scales + row).to(tl.float32)
        store_columns(out, as_tile(values, 1).to(tl.float32) * scale[:, None], row, k, first_row, N, K, 64)
