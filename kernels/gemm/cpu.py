"""GEMM over packed weights: all threads call `gemm` with their own number, each computes its share of the panels.

A panel is read from memory once for all rows: the rows are taken in blocks whose activations stay in the L2 cache,
and while the first tiles use a panel they prefetch the next one.
"""

from __future__ import annotations

from ..compile_cache import compiled
from ..quantise.layout import row_bytes
from ..simd.formats import GROUP, WEIGHT_BITS, Tag
from ..simd.functions import by_format, kernel
from .pack import panel_channels, scale_bytes
from .tile import ARGUMENTS, MOST_ROWS, emit
from .tile_int4 import INT4_MOST_ROWS

L2_ACTIVATION_BYTES = 384 * 1024
FEW_ROWS = 4  # up to 16 rows, tiles of 4 balance better than tiles of 6

tile = kernel("i" + ARGUMENTS, emit)
_channels = by_format(panel_channels)
_weight_bits = by_format(lambda weight_format: WEIGHT_BITS[weight_format])
_bytes_of_32 = by_format(lambda weight_format: row_bytes(weight_format, 32))
_scale_group_bytes = by_format(lambda weight_format: scale_bytes(panel_channels(weight_format), weight_format))
_grouped = by_format(lambda weight_format: int(weight_format == "int4"))


@compiled
def gemm(
    tag: Tag,
    thread: int,
    threads: int,
    add: int,
    rows: int,
    k: int,
    a: int,
    a_stride: int,
    weights: int,
    scales: int,
    group_shift: int,
    channels: int,
    out: int,
    out_stride: int,
) -> None:
    """out[rows, channels] = (or +=, if add) a[rows, k] @ weights.

    Strides are in bytes, channels a multiple of 64, k of 32. Rows of `a` are as quantise/layout.py describes them.
    """
    panels = channels // _channels(tag)
    first = panels * thread // threads
    last = panels * (thread + 1) // threads
    panel_bytes = k * _channels(tag) * _weight_bits(tag) // 8
    panel_scale_bytes = _scale_group_bytes(tag)
    if _grouped(tag):
        panel_scale_bytes *= (k // GROUP + (1 << group_shift) - 1) >> group_shift
        most = INT4_MOST_ROWS
        prefetching = 1
    else:
        most = FEW_ROWS if rows <= 16 else MOST_ROWS
        prefetching = 4
    steps = k * _weight_bits(tag) // 32
    tiles = (rows + most - 1) // most
    tiles_a_block = max(1, L2_ACTIVATION_BYTES // (k // GROUP * _bytes_of_32(tag)) // most)
    for block in range(0, tiles, tiles_a_block):
        for panel in range(first, last):
            w = weights + panel * panel_bytes
            for t in range(block, min(tiles, block + tiles_a_block)):
                row = rows * t // tiles
                count = rows * (t + 1) // tiles - row
                ahead = a  # nothing new: a single tile streams the weights, which the hardware prefetches as well
                if block == 0 and t < prefetching and (tiles > 1 or (prefetching == 1 and rows > 1)):
                    ahead = w + panel_bytes + t * (panel_bytes // prefetching)
                tile(
                    tag,
                    count,
                    a + row * a_stride,
                    a_stride,
                    w,
                    steps,
                    out + row * out_stride + panel * _channels(tag) * 4,
                    out_stride,
                    scales + panel * panel_scale_bytes,
                    group_shift,
                    ahead,
                    add,
                )
