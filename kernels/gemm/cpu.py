"""GEMM over packed weights: every thread calls `gemm` with its own number and computes its share of the panels.

A panel is read from memory once for all rows. Rows are processed in blocks whose activations stay in the L2 cache, and
while the first tile uses a panel it prefetches the next one.
"""

from __future__ import annotations

from llvmlite import ir

from ..compile_cache import compiled
from ..quantise.layout import row_bytes
from ..simd.formats import GROUP, WEIGHT_BITS, Tag
from ..simd.functions import by_format, kernel
from .pack import scale_bytes
from .tile import ARGUMENTS, FEW_ROWS, MOST_ROWS, PANEL, emit_tile
from .tile_int4 import INT4_MOST_ROWS, emit_tile_int4

L2_ACTIVATION_BYTES = 384 * 1024


def _emit(module: ir.Module, weight_format: str) -> ir.Function:
    return emit_tile_int4(module) if weight_format == "int4" else emit_tile(module, weight_format)


tile = kernel("i" + ARGUMENTS, _emit)
_weight_bits = by_format(lambda weight_format: WEIGHT_BITS[weight_format])
_bytes_of_32 = by_format(lambda weight_format: row_bytes(weight_format, 32))
_scale_group_bytes = by_format(lambda weight_format: scale_bytes(PANEL, weight_format))
_grouped = by_format(lambda weight_format: int(weight_format == "int4"))
_most_rows = by_format(lambda weight_format: INT4_MOST_ROWS if weight_format == "int4" else MOST_ROWS)
# With more rows than this, the next panel is prefetched.
_unaided_rows = by_format(lambda weight_format: 1 if weight_format == "int4" else FEW_ROWS)


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
    panels = channels // PANEL
    first = panels * thread // threads
    last = panels * (thread + 1) // threads
    panel_bytes = k * PANEL * _weight_bits(tag) // 8
    panel_scale_bytes = _scale_group_bytes(tag)
    if _grouped(tag):
        panel_scale_bytes *= (k // GROUP + (1 << group_shift) - 1) >> group_shift
    steps = k * _weight_bits(tag) // 32
    most = _most_rows(tag)
    unaided = _unaided_rows(tag)
    tiles = (rows + most - 1) // most
    tiles_a_block = max(1, L2_ACTIVATION_BYTES // (k // GROUP * _bytes_of_32(tag)) // most)
    for block in range(0, tiles, tiles_a_block):
        for panel in range(first, last):
            w = weights + panel * panel_bytes
            prefetching = rows > unaided and panel + 1 < last
            for t in range(block, min(tiles, block + tiles_a_block)):
                row = rows * t // tiles
                count = rows * (t + 1) // tiles - row
                own = a + row * a_stride
                tile(
                    tag,
                    count,
                    own,
                    a_stride,
                    w,
                    steps,
                    out + row * out_stride + panel * PANEL * 4,
                    out_stride,
                    scales + panel * panel_scale_bytes,
                    group_shift,
                    w + panel_bytes if prefetching and t == block else own,
                    add,
                )
