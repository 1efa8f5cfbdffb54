"""Groups of 4-bit weights that share a scale and a zero point or a minimum: their layout, and how they are applied.

scales     [K / 128, N / 64, 32, G, 2], of the G = 128 / group groups in 128 columns and of rows g and g + 8 of warp w
           (gpu_fragment.py) at 8 w + g; bfloat16, or float16 or float32 where a checkpoint's would be rounded
offsets    -(128 + zero point) bfloat16, laid out like the scales; or None, where every zero point is 8
minima     float16 or float32, laid out like the scales, or None: weight = scale x integer - minimum, without a zero
           point, of groups of 32
"""

from __future__ import annotations

from ..gpu.language import jit, tl
from .gpu_fragment import byte_places, spread, unpack_nibbles, unpack_nibbles_zeros


@jit
def by_nibble(values, GROUPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Values of groups and of rows g and g + 8, [BLOCKS x 128, 2 GROUPS], to the form of low and of high nibbles."""
    STEPS: tl.constexpr = 2 if GROUPS == 4 else 1
    if GROUPS == 1:
        low = spread(tl.reshape(values, (BLOCKS * 128, 1, 2)), 1, BLOCKS)
        high = low
    else:
        parts = tl.permute(tl.reshape(values, (BLOCKS * 128, 2, STEPS, 2)), (0, 2, 3, 1))
        below, above = tl.split(parts)
        low, high = spread(below, STEPS, BLOCKS), spread(above, STEPS, BLOCKS)
    return low, high


@jit
def unpack_groups(packed, offsets, minima, GROUPS: tl.constexpr, BLOCKS: tl.constexpr):
    """The low and the high values of packed 4-bit weights, less their zero points; with minima, none."""
    if minima is not None:
        tl.static_assert(GROUPS == 4, "minima are of groups of 32")
        nothing = tl.full(packed.shape, -128.0, tl.bfloat16)
        low, high = unpack_nibbles_zeros(packed, nothing, nothing)
    elif offsets is None:
        low, high = unpack_nibbles(packed)
    else:
        low_offset, high_offset = by_nibble(offsets, GROUPS, BLOCKS)
        low, high = unpack_nibbles_zeros(packed, low_offset, high_offset)
    return low, high


@jit
def pair_places(tile_n, GROUPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Offsets, [BLOCKS x 128, 2 GROUPS], of what belongs to the two rows of each thread of a tile in a K block."""
    pair = tile_n * (32 * BLOCKS) + tl.arange(0, 128 * BLOCKS) // 4
    return pair[:, None] * (2 * GROUPS) + tl.arange(0, 2 * GROUPS)[None, :]


@jit
def quarters(values):
    """Of the four groups of 32 in a K block, [rows, 4]: of columns 0, 32, 64 and 96."""
    low, high = tl.split(tl.reshape(values, (values.shape[0], 2, 2)))
    first, third = tl.split(low)
    second, fourth = tl.split(high)
    return first, second, third, fourth


@jit
def w4_places(packed, k_blocks, tile_n, GROUPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Where the first K block of a tile of channels lies: its bytes, and offsets of its scales by row of the tile."""
    places = packed + tile_n.to(tl.int64) * (k_blocks * BLOCKS * 4096) + byte_places(k_blocks * 4096, BLOCKS)
    row = tl.arange(0, 64 * BLOCKS)
    pair = tile_n * (32 * BLOCKS) + row // 16 * 8 + row % 8
    return places, (pair * (2 * GROUPS) + row // 8 % 2)[:, None] + tl.arange(0, GROUPS)[None, :] * 2
