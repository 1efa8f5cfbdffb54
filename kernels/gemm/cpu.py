"""GEMM over packed weights: `gemm` computes one of several equal parts of the panels. shared.py deals them to threads.

A panel is read from memory once for all rows. Rows are processed in blocks whose activations stay in the L2 cache, and
while the first tile uses a panel it prefetches the next one.
"""

from __future__ import annotations

from llvmlite import ir

from ..compile_cache import compiled, inlined
from ..quantise.layout import row_bytes
from ..simd.amx import has_tiles, tiles_permitted
from ..simd.formats import GROUP, WEIGHT_BITS, Tag
from ..simd.functions import by_format, kernel
from ..threads.atomics import peek
from .cpu_amx import tile_gemm
from .pack import scale_bytes
from .segments import ADD, BITS, CODES, FIRST_PANEL, PANELS, SEGMENT_BYTES, SEGMENTS_START
from .tile import ARGUMENTS, FEW_ROWS, MOST_ROWS, PANEL, emit_tile
from .tile_amx import MOST_TILE_ROWS
from .tile_int4 import INT4_MOST_ROWS, emit_tile_int4
from .tile_stored import emit_tile_stored

L2_ACTIVATION_BYTES = 384 * 1024
TILES_HERE = has_tiles()  # a plain name: numba leaves out what stands behind a false one
# Activations in the L2 cache of CPUs with the unit, which has 2 MB. The unit is so fast that its cores would ask more
# of the memory than it gives if they reread the weights for a few rows each; not measured either.
TILE_L2_BYTES = 1024 * 1024
_BY_GROUPS = ("int4", "stored")  # activations have a scale per group of 32


def _emit(module: ir.Module, weight_format: str) -> ir.Function:
    if weight_format == "stored":
        return emit_tile_stored(module)
    return emit_tile_int4(module) if weight_format == "int4" else emit_tile(module, weight_format)


tile = kernel("i" + ARGUMENTS, _emit)
stored = by_format(lambda weight_format: int(weight_format == "stored"))
_weight_bits = by_format(lambda weight_format: WEIGHT_BITS.get(weight_format, 0))
_bytes_of_32 = by_format(lambda weight_format: row_bytes(weight_format, 32))
_bytes_of_32_more = by_format(lambda weight_format: row_bytes(weight_format, 64) - row_bytes(weight_format, 32))
_scale_group_bytes = by_format(lambda weight_format: scale_bytes(PANEL, weight_format))
_grouped = by_format(lambda weight_format: int(weight_format == "int4"))
# From how many rows and inputs on a tile unit multiplies; 0: never. Of bfloat16 all rows, see tile_amx_bfloat16.py. The
# 16 rows of int8 and int4 are not measured, as no test machine has such a unit.
_tile_rows_from = by_format(lambda weight_format: {"bfloat16": 1, "int8": 16, "int4": 16}.get(weight_format, 0))
_tile_inputs_from = by_format(lambda weight_format: 32 if weight_format == "bfloat16" else 64)
tile_rows = by_format(lambda weight_format: INT4_MOST_ROWS if weight_format in _BY_GROUPS else MOST_ROWS)
# With more rows than this, the next panel is prefetched.
unaided_rows = by_format(lambda weight_format: 1 if weight_format in _BY_GROUPS else FEW_ROWS)


@inlined
def panel_layout(tag: Tag, k: int, group_shift: int) -> tuple[int, int, int]:
    """Of a panel: its bytes, those of its scales, its k steps. The first two are 0 for stored weights."""
    scales = _scale_group_bytes(tag)
    if _grouped(tag):
        scales *= (k // GROUP + (1 << group_shift) - 1) >> group_shift
    steps = k // GROUP if stored(tag) else k * _weight_bits(tag) // 32
    return k * PANEL * _weight_bits(tag) // 8, scales, steps


@inlined
def segments_of(tag: Tag, scales: int) -> int:
    return peek(scales) if stored(tag) else 1


@inlined
def segment_of(
    tag: Tag, number: int, k: int, weights: int, scales: int, panels: int, panel_bytes: int
) -> tuple[int, int, int, int, int, int]:
    """The segment's first panel, its panels, the first one's address, that of its scales, bytes of a panel, whether
    it adds. Weights of other formats, which have the last four arguments, are one segment."""
    first, adds = 0, 0
    if stored(tag):
        scales += SEGMENTS_START + number * SEGMENT_BYTES
        first, panels, adds = peek(scales + FIRST_PANEL * 8), peek(scales + PANELS * 8), peek(scales + ADD * 8)
        weights, panel_bytes = scales + peek(scales + CODES * 8), k * PANEL * peek(scales + BITS * 8) // 8
    return first, panels, weights, scales, panel_bytes, adds


@inlined
def tiles_in_cache(tag: Tag, k: int) -> int:
    """Tiles of rows whose activations stay in the L2 cache while panel after panel goes by."""
    return max(1, L2_ACTIVATION_BYTES // (k // GROUP * _bytes_of_32(tag)) // tile_rows(tag))


@inlined
def in_tile_unit(tag: Tag, rows: int, k: int) -> bool:
    """Whether a tile unit multiplies them, if there is one."""
    fewest = _tile_rows_from(tag)
    return bool(fewest and rows >= fewest and k >= _tile_inputs_from(tag) and tiles_permitted())


@inlined
def _unit_blocks(tag: Tag, k: int) -> int:
    """Blocks of rows for a tile unit, whose activations stay in the L2 cache in the same way."""
    return max(1, TILE_L2_BYTES // (k // GROUP * _bytes_of_32_more(tag)) // MOST_TILE_ROWS)


@compiled
def row_blocks(tag: Tag, rows: int, k: int) -> int:
    """How many blocks so many rows make, each of which stays in the L2 cache."""
    most = tiles_in_cache(tag, k) * tile_rows(tag)
    if TILES_HERE and in_tile_unit(tag, rows, k):
        most = _unit_blocks(tag, k) * MOST_TILE_ROWS
    return (rows + most - 1) // most


@compiled
def gemm(
    tag: Tag,
    part: int,
    parts: int,
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
    """out[rows, channels] = (or +=, if add) a[rows, k] @ weights, of the channels in one of `parts` parts.

    Strides are in bytes, channels a multiple of 64, k of 32. Rows of `a` are as quantise/layout.py describes them.
    Stored weights are found by their table (segments.py), whose address is `scales`.
    """
    panel_bytes, panel_scale_bytes, steps = panel_layout(tag, k, group_shift)
    if TILES_HERE and in_tile_unit(tag, rows, k):
        tile_gemm(
            part,
            parts,
            add,
            rows,
            _unit_blocks(tag, k),
            steps,
            a,
            a_stride,
            weights,
            panel_bytes,
            scales,
            panel_scale_bytes,
            _weight_bits(tag),
            group_shift,
            channels,
            out,
            out_stride,
        )
        return
    most = tile_rows(tag)
    unaided = unaided_rows(tag)
    tiles = (rows + most - 1) // most
    in_cache = tiles_in_cache(tag, k)
    for number in range(segments_of(tag, scales)):
        begin, panels, own_weights, own_scales, own_bytes, adds = segment_of(
            tag, number, k, weights, scales, channels // PANEL, panel_bytes
        )
        first = panels * part // parts
        last = panels * (part + 1) // parts
        for block in range(0, tiles, in_cache):
            for panel in range(first, last):
                w = own_weights + panel * own_bytes
                prefetching = rows > unaided and panel + 1 < panels  # its own, or the next part's, which is next
                for t in range(block, min(tiles, block + in_cache)):
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
                        out + row * out_stride + (begin + panel) * PANEL * 4,
                        out_stride,
                        own_scales + panel * panel_scale_bytes,
                        panel if stored(tag) else group_shift,
                        w + own_bytes if prefetching and t == block else own,
                        add | adds,
                    )
