"""The int8 GEMM micro-kernel for a tile unit (simd/amx.py), as LLVM IR: 16 to 32 rows times one or two panels.

Sixteen k steps of a packed panel (tile.py) are a tile of weights as they lie in memory, and the same 64 bytes of 16
rows a tile of activations. So each step loads two tiles of either kind for four products. Of an odd number of 32
inputs, the last ones are multiplied with a tile of weights whose first half is zero.

Fewer than 32 rows are two tiles that overlap, and a single panel counts as two: what is computed twice is written once.
Sums are exact, so the results are those of tile.py bit for bit: wide quads, corrections and scales are its code.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..quantise.layout import HEADER_BYTES
from ..simd.amx import TILE_BYTES, TILE_ROWS, TileUnit
from ..simd.functions import Values, inline, loop, new_function
from ..simd.lanes import VECTOR_BYTES, VF, VI, at, constant, i32, i64, int64, load, prefetch, scaled, store
from .tile import dequantise, prefetch_stride, wide_sums, write_rows

FEWEST_ROWS, MOST_TILE_ROWS = TILE_ROWS, 2 * TILE_ROWS
STEPS = FEWEST_STEPS = 16  # of four inputs, in a tile
TILE = TILE_ROWS * TILE_BYTES  # bytes
_ARGUMENTS = 13
_TOTALS, _ACTIVATIONS, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)  # totals of [panel][half of the rows]


def callables(unit: TileUnit) -> tuple[Callable[[], int], Callable[[int], None], Callable[..., None]]:
    """For compiled code: configure() -> the unit's state, release(state), and the function of `emit_block`."""

    def block(b: ir.IRBuilder, *values: ir.Value) -> None:
        b.call(emit_block(b.module, unit), values)

    return (
        inline(0, unit.configure, result=True),
        inline(1, unit.release, result=False),
        inline(_ARGUMENTS, block, result=False),
    )


def emit_block(module: ir.Module, unit: TileUnit) -> ir.Function:
    """f(unit's state, rows, a, a stride, weights, panels, panel bytes, k steps, out, out stride, scales, next, add).

    At least 16 k steps. `next` is a pair of panels to prefetch, or `a` for none.
    """
    name = f"triolet_gemm_tiles_{unit.name}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "i" * _ARGUMENTS)
    state, rows, a, a_stride, weights, panels, panel_bytes, steps, out, out_stride, scales, following, add = (
        function.args
    )
    sums, half_tiles = _room(b, 2 * MOST_TILE_ROWS), _room(b, 2 * STEPS)
    second = b.sub(rows, int64(TILE_ROWS))  # first row of the second tile
    starts = [at(b, a, HEADER_BYTES), at(b, b.add(a, b.mul(second, a_stride)), HEADER_BYTES)]
    both = [weights, b.add(weights, b.mul(b.sub(panels, int64(1)), panel_bytes))]
    stride = prefetch_stride(b, following, a, 2 * TILE)

    def products(tiles: Values, place: ir.Value) -> None:
        for number, tile in zip(_WEIGHTS, tiles, strict=True):
            unit.load(b, state, number, tile, int64(VECTOR_BYTES))
        for half, (number, start) in enumerate(zip(_ACTIVATIONS, starts, strict=True)):
            unit.load(b, state, number, b.add(start, place), a_stride)
            for panel, tile in enumerate(_WEIGHTS):
                unit.multiply(b, state, _TOTALS[panel][half], number, tile)

    def whole(index: ir.Value, _: Values) -> Values:
        ahead = b.add(following, b.mul(index, stride))
        for line in range(2 * TILE_ROWS):
            prefetch(b, at(b, ahead, line * TILE_BYTES))
        products([scaled(b, panel, index, TILE) for panel in both], scaled(b, int64(0), index, TILE_BYTES))
        return []

    def rest(_: ir.Value, __: Values) -> Values:
        first = b.sub(steps, int64(STEPS))
        for panel, start in enumerate(both):
            for step in range(STEPS):
                own = scaled(b, start, b.add(first, int64(step)), VECTOR_BYTES)
                value = constant(i32, 0) if step < STEPS // 2 else load(b, own, VI, 64)
                store(b, value, at(b, half_tiles, panel * TILE + step * VECTOR_BYTES), 64)
        products([at(b, half_tiles, panel * TILE) for panel in range(2)], scaled(b, int64(0), first, 4))
        return []

    def write_panel(panel: ir.Value, _: Values) -> Values:
        w, scale = b.add(weights, b.mul(panel, panel_bytes)), load(b, scaled(b, scales, panel, VECTOR_BYTES), VF)

        def write_row(row: ir.Value, _: Values) -> Values:
            header = b.add(a, b.mul(row, a_stride))
            place = b.add(b.mul(panel, int64(MOST_TILE_ROWS)), row)
            total = load(b, scaled(b, sums, place, VECTOR_BYTES), VI, 64)
            total = b.add(total, wide_sums(b, [header], a_stride, w, steps)[0])
            target = b.add(scaled(b, out, panel, VECTOR_BYTES), b.mul(row, out_stride))
            write_rows(b, dequantise(b, [total], [header], scale), target, out_stride, add)
            return []

        loop(b, rows, [], write_row)
        return []

    prefetch(b, scales)
    for number in (tile for pair in _TOTALS for tile in pair):
        unit.zero(b, state, number)
    loop(b, b.lshr(steps, int64(4)), [], whole)
    loop(b, b.and_(b.lshr(steps, int64(3)), int64(1)), [], rest)
    for panel, pair in enumerate(_TOTALS):
        own = at(b, sums, panel * MOST_TILE_ROWS * VECTOR_BYTES)
        unit.store(b, state, pair[0], own, int64(VECTOR_BYTES))
        unit.store(b, state, pair[1], scaled(b, own, second, VECTOR_BYTES), int64(VECTOR_BYTES))
    loop(b, panels, [], write_panel)
    b.ret_void()
    return function


def _room(b: ir.IRBuilder, vectors: int) -> ir.Value:
    return b.ptrtoint(b.alloca(VI, size=ir.Constant(i32, vectors)), i64)
