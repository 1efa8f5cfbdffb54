"""The block of tile_amx.py for 4-bit weights: tiles multiply, vectors scale the sum of each group of 32 inputs.

A group is half a tile. The codes are unpacked into the first half of one whose second half stays zero; so what stands
behind a group's bytes in an activation row (quantise/layout.py) is multiplied by nothing. A few groups go through the
tiles, then through vectors: each row's total is in a register for as many.

The groups are added in ascending order by the code of tile_int4.py, so the results are its own, bit for bit.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from ..quantise.layout import GROUP_BYTES, GROUP_STARTS
from ..simd.amx import TileUnit
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import VECTOR_BYTES, VF, VI, at, constant, f32, i32, int64, load, scaled, splat, store
from .tile import prefetch_stride
from .tile_amx import ARGUMENTS, SUMS_BYTES, TILE, Block, Tiles, place_of, room, write_row_of
from .tile_int4 import PANEL_GROUP_BYTES, add_group, group_scale, unpacked_group

AT_A_TIME = 4  # groups, whose sums are 16 KB, a third of the L1 cache; not measured


def emit_block_int4(module: ir.Module, unit: TileUnit, row_tiles: int) -> ir.Function:
    name = f"triolet_gemm_int4_{unit.name}_{row_tiles}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, ARGUMENTS)
    block = Block(*function.args)
    tiles, totals = Tiles(b, unit, block, row_tiles), room(b, SUMS_BYTES)
    sums, codes = room(b, AT_A_TIME * SUMS_BYTES), room(b, AT_A_TIME * 2 * TILE)
    stride = prefetch_stride(b, block.following, block.a, PANEL_GROUP_BYTES)
    none = b.icmp_signed("==", stride, int64(0))
    following = [block.following, b.add(block.following, b.select(none, int64(0), block.panel_bytes))]
    groups = b.lshr(block.steps, int64(2))

    def some(count: int, start: ir.Value, index: ir.Value, _: Values) -> Values:
        first = b.add(start, b.mul(index, int64(count)))
        for number in range(count):
            group = b.add(first, int64(number))
            own = [at(b, codes, (2 * number + panel) * TILE) for panel in range(2)]
            for panel, tile, ahead in zip(tiles.panels, own, following, strict=True):
                place = scaled(b, panel, group, PANEL_GROUP_BYTES)
                quads = unpacked_group(b, place, b.add(ahead, b.mul(group, stride)))
                for quad, vector in enumerate(quads):
                    store(b, vector, at(b, tile, quad * VECTOR_BYTES), 64)
            tiles.zero()
            tiles.multiply(own, scaled(b, int64(0), group, GROUP_BYTES), unit.multiply_bytes)
            tiles.store(at(b, sums, number * SUMS_BYTES))
        loop(b, block.panels, [], partial(add_panel, count, first))
        return []

    def add_panel(count: int, first: ir.Value, panel: ir.Value, _: Values) -> Values:
        own = b.add(block.scales, b.mul(panel, block.panel_scale_bytes))
        numbers = [b.add(first, int64(number)) for number in range(count)]
        scales = [group_scale(b, own, group, block.group_shift) for group in numbers]

        def add_row(row: ir.Value, _: Values) -> Values:
            x = scaled(b, b.add(block.a, b.mul(row, block.a_stride)), first, GROUP_BYTES)
            total = load(b, place_of(b, totals, panel, row), VF, 64)
            for number, scale in enumerate(scales):
                group = at(b, x, number * GROUP_BYTES)
                products = load(b, at(b, place_of(b, sums, panel, row), number * SUMS_BYTES), VI, 64)
                shifted = b.add(products, splat(b, load(b, at(b, group, GROUP_STARTS[4]), i32)))
                total = add_group(b, group, shifted, scale, total)
            store(b, total, place_of(b, totals, panel, row), 64)
            return []

        loop(b, block.rows, [], add_row)
        return []

    def write_panel(panel: ir.Value, _: Values) -> Values:
        def write_row(row: ir.Value, _: Values) -> Values:
            write_row_of(b, block, panel, row, load(b, place_of(b, totals, panel, row), VF, 64))
            return []

        loop(b, block.rows, [], write_row)
        return []

    for vector in range(SUMS_BYTES // VECTOR_BYTES):
        store(b, constant(f32, 0.0), at(b, totals, vector * VECTOR_BYTES), 64)
    for tile in range(2 * AT_A_TIME):
        for vector in range(TILE // 2, TILE, VECTOR_BYTES):
            store(b, constant(i32, 0), at(b, codes, tile * TILE + vector), 64)
    loop(b, b.udiv(groups, int64(AT_A_TIME)), [], partial(some, AT_A_TIME, int64(0)))
    rest = b.urem(groups, int64(AT_A_TIME))
    loop(b, rest, [], partial(some, 1, b.sub(groups, rest)))
    loop(b, block.panels, [], write_panel)
    b.ret_void()
    return function
