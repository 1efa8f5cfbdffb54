"""Unpacks 4-bit or 8-bit weights to rows of bfloat16, for the vendor's GEMM when x has many rows.

A program writes 64 rows x 128 (4 bits) or 64 (8 bits) columns. The product of integer and scale is formed in float32
and rounded once.
"""

from __future__ import annotations

from ..gpu.language import jit, tl
from .gpu_fragment import as_halves, as_tile, byte_places, unpack_bytes
from .gpu_groups import pair_places, unpack_groups, w4_places


@jit
def store_columns(out, values, row, k, first_row, N, K, WIDTH: tl.constexpr):
    """out[row - first_row, k : k + WIDTH] = values."""
    column = k + tl.arange(0, WIDTH)
    inside = (row < N)[:, None] & (column < K)[None, :]
    place = out + (row - first_row).to(tl.int64)[:, None] * K + column[None, :]
    tl.store(place, values.to(out.dtype.element_ty), mask=inside)


@jit
def w4_dequantise_kernel(packed, scales, offsets, out, first_row, N, K, padded_n, GROUPS: tl.constexpr):
    """out [rows, K] = rows first_row ... of the weights; the grid is (row blocks, K blocks)."""
    tile_n = first_row // 64 + tl.program_id(0)
    k_block = tl.program_id(1)
    places, scale_places = w4_places(packed, scales, tl.num_programs(1), tile_n, GROUPS, 1)
    apart = padded_n * GROUPS
    offset = None
    if offsets is not None:
        offset = tl.load(offsets + pair_places(tile_n, GROUPS, 1) + k_block * apart)
    low, high = unpack_groups(tl.load(places + k_block * 4096), offset, GROUPS, 1)
    scale = tl.load(scale_places + k_block * apart).to(tl.float32)
    row = tile_n * 64 + tl.arange(0, 64)
    k = k_block * 128
    if GROUPS == 4:
        low0, low1 = as_halves(low, 1)
        high0, high1 = as_halves(high, 1)
        step0, step1 = tl.split(tl.reshape(scale, (64, 2, 2)))
        scale0, scale2 = tl.split(step0)
        scale1, scale3 = tl.split(step1)
        store_columns(out, low0.to(tl.float32) * scale0[:, None], row, k, first_row, N, K, 32)
        store_columns(out, low1.to(tl.float32) * scale1[:, None], row, k + 32, first_row, N, K, 32)
        store_columns(out, high0.to(tl.float32) * scale2[:, None], row, k + 64, first_row, N, K, 32)
        store_columns(out, high1.to(tl.float32) * scale3[:, None], row, k + 96, first_row, N, K, 32)
    else:
        low_scale, high_scale = scale, scale
        if GROUPS == 2:
            below, above = tl.split(scale)
            low_scale, high_scale = below[:, None], above[:, None]
        store_columns(out, as_tile(low, 1).to(tl.float32) * low_scale, row, k, first_row, N, K, 64)
        store_columns(out, as_tile(high, 1).to(tl.float32) * high_scale, row, k + 64, first_row, N, K, 64)


@jit
def w8_dequantise_kernel(packed, scales, out, first_row, N, K):
    """The same for bytes, whose scales are per row."""
    tile_n = first_row // 64 + tl.program_id(0)
    k_block = tl.program_id(1)
    start = packed + (tile_n.to(tl.int64) * tl.num_programs(1) + k_block) * 4096
    row = tile_n * 64 + tl.arange(0, 64)
    values = as_tile(unpack_bytes(tl.load(start + byte_places(4096, 1))), 1).to(tl.float32)
    store_columns(out, values * tl.load(scales + row)[:, None], row, k_block * 64, first_row, N, K, 64)
