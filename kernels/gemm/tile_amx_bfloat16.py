"""The block of tile_amx.py for bfloat16: the tile unit does all of it, for any number of rows.

Its sums are rounded in a way of its own (simd/amx.py), so a row's result must come from it whatever the number of rows:
otherwise it would depend on how many others are in the batch. Up to 16 rows, a tile has no more rows than there are.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.amx import TILE_BYTES, TileUnit
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import VF, int64, load, scaled
from .tile import prefetch_stride
from .tile_amx import ARGUMENTS, SUMS_BYTES, TILE, Block, Tiles, place_of, prefetch_pair, room, write_row_of


def emit_block_bfloat16(module: ir.Module, unit: TileUnit, row_tiles: int) -> ir.Function:
    name = f"triolet_gemm_bfloat16_{unit.name}_{row_tiles}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, ARGUMENTS)
    block = Block(*function.args)
    tiles, sums = Tiles(b, unit, block, row_tiles), room(b, SUMS_BYTES)
    stride = prefetch_stride(b, block.following, block.a, 2 * TILE)

    def step(index: ir.Value, _: Values) -> Values:
        prefetch_pair(b, block, index, stride)
        weights = [scaled(b, panel, index, TILE) for panel in tiles.panels]
        tiles.multiply(weights, scaled(b, int64(0), index, TILE_BYTES), unit.multiply_pairs)
        return []

    def write_panel(panel: ir.Value, _: Values) -> Values:
        def write_row(row: ir.Value, _: Values) -> Values:
            write_row_of(b, block, panel, row, load(b, place_of(b, sums, panel, row), VF, 64))
            return []

        loop(b, block.rows, [], write_row)
        return []

    tiles.zero()
    loop(b, b.lshr(block.steps, int64(4)), [], step)
    tiles.store(sums)
    loop(b, block.panels, [], write_panel)
    b.ret_void()
    return function
