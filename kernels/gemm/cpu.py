"""GEMM over packed weights: all threads call `gemm` with their own number, each computes its share of the panels.

A panel is read from memory once for all rows: the rows are taken in blocks whose activations stay in the L2 cache,
and while the first four tiles use a panel they prefetch the next one.
"""

from __future__ import annotations

from ..compile_cache import compiled
from ..simd.formats import Tag
from ..simd.functions import kernel
from .tile import ARGUMENTS, MOST_ROWS, PANEL, emit

L2_ACTIVATION_BYTES = 384 * 1024
FEW_ROWS = 4  # up to 16 rows, tiles of 4 balance better than tiles of 6

tile = kernel("i" + ARGUMENTS, emit)


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
    value_bytes: int,
    channel_scales: int,
    channels: int,
    out: int,
    out_stride: int,
    row_scales: int,
    corrections: int,
) -> None:
    """out[rows, channels] = (or +=, if add) a[rows, k] @ weights.

    Strides are in bytes, channels a multiple of 64, k of 32.
    """
    panels = channels // PANEL
    first = panels * thread // threads
    last = panels * (thread + 1) // threads
    panel_bytes = k * PANEL * value_bytes
    steps = k * value_bytes // 4
    most = FEW_ROWS if rows <= 16 else MOST_ROWS
    tiles = (rows + most - 1) // most
    tiles_a_block = max(1, L2_ACTIVATION_BYTES // (k * value_bytes) // most)
    for block in range(0, tiles, tiles_a_block):
        for panel in range(first, last):
            w = weights + panel * panel_bytes
            for t in range(block, min(tiles, block + tiles_a_block)):
                row = rows * t // tiles
                count = rows * (t + 1) // tiles - row
                ahead = a  # nothing new: a single tile streams the weights, which the hardware prefetches as well
                if block == 0 and t < 4 and tiles > 1:
                    ahead = w + panel_bytes + t * (panel_bytes // 4)
                tile(
                    tag,
                    count,
                    a + row * a_stride,
                    a_stride,
                    w,
                    steps,
                    out + row * out_stride + panel * PANEL * 4,
                    out_stride,
                    row_scales + row * 4,
                    corrections + row * 4,
                    channel_scales + panel * PANEL * 4,
                    ahead,
                    add,
                )
