"""The GEMM micro-kernel for a tile unit (simd/amx.py), as LLVM IR: up to 32 rows times one or two panels of int8.

Sixteen k steps of a packed panel (tile.py) are a tile of weights as they lie in memory, and the same 64 bytes of 16
rows a tile of activations. So each step loads two tiles of either kind for four products. Of an odd number of 32
inputs, the last ones are multiplied with a tile of weights whose first half is zero.

Up to 16 rows are one tile, of as many rows as the unit was configured for. From 17 to 31 they are two that overlap, and
a single panel counts as two: what is computed twice is written once. int8 sums are exact, so the results are those of
tile.py bit for bit: wide quads, corrections and scales are its code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from ..quantise.layout import HEADER_BYTES
from ..simd.amx import TILE_BYTES, TILE_ROWS, TileUnit
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import VECTOR_BYTES, VF, VI, at, constant, i32, i64, int64, load, prefetch, scaled, store
from .tile import dequantise, prefetch_stride, wide_sums, write_rows

MOST_TILE_ROWS = 2 * TILE_ROWS
STEPS = 16  # of four inputs, in a tile
TILE = TILE_ROWS * TILE_BYTES  # bytes
SUMS_BYTES = 4 * TILE  # of a block
_TOTALS, _ACTIVATIONS, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)  # totals of [panel][half of the rows]


class Block(NamedTuple):
    """The arguments of a block's function: rows times one or two panels. At least 64 inputs."""

    state: ir.Value  # of the unit
    rows: ir.Value
    a: ir.Value
    a_stride: ir.Value
    weights: ir.Value
    panels: ir.Value
    panel_bytes: ir.Value
    steps: ir.Value
    out: ir.Value
    out_stride: ir.Value
    scales: ir.Value
    panel_scale_bytes: ir.Value
    group_shift: ir.Value
    following: ir.Value  # a pair of panels to prefetch, or `a` for none
    add: ir.Value


ARGUMENTS = "i" * len(Block._fields)
Product = Callable[[ir.IRBuilder, ir.Value, int, int, int], None]  # a method of the unit


class Tiles:
    """The tiles of a block: one or two of rows, two of panels, as many totals as products of these."""

    def __init__(self, b: ir.IRBuilder, unit: TileUnit, block: Block, row_tiles: int) -> None:
        self._b, self._unit, self._block = b, unit, block
        second = b.sub(block.rows, int64(TILE_ROWS))
        self._first_rows = [int64(0), second][:row_tiles]
        self._starts = [block.a, b.add(block.a, b.mul(second, block.a_stride))][:row_tiles]
        other = b.mul(b.sub(block.panels, int64(1)), block.panel_bytes)
        self.panels = [block.weights, b.add(block.weights, other)]

    def zero(self) -> None:
        for pair in _TOTALS:
            for _, number in zip(self._starts, pair, strict=False):
                self._unit.zero(self._b, self._block.state, number)

    def multiply(self, weights: Values, place: ir.Value, product: Product) -> None:
        """The totals += the rows' 64 bytes at `place` in them, times the tiles of weights at two addresses."""
        b, unit, state = self._b, self._unit, self._block.state
        for number, tile in zip(_WEIGHTS, weights, strict=True):
            unit.load(b, state, number, tile, int64(TILE_BYTES))
        for half, start in enumerate(self._starts):
            unit.load(b, state, _ACTIVATIONS[half], b.add(start, place), self._block.a_stride)
            for panel, tile in enumerate(_WEIGHTS):
                product(b, state, _TOTALS[panel][half], _ACTIVATIONS[half], tile)

    def store(self, sums: ir.Value) -> None:
        """To vectors of [panel][32 rows]."""
        b = self._b
        for panel, pair in enumerate(_TOTALS):
            own = at(b, sums, panel * MOST_TILE_ROWS * VECTOR_BYTES)
            for number, row in zip(pair, self._first_rows, strict=False):
                self._unit.store(b, self._block.state, number, scaled(b, own, row, VECTOR_BYTES), int64(VECTOR_BYTES))


def prefetch_pair(b: ir.IRBuilder, block: Block, index: ir.Value, stride: ir.Value) -> None:
    """The two tiles of weights of this step in the next pair of panels."""
    ahead = b.add(block.following, b.mul(index, stride))
    for line in range(2 * TILE_ROWS):
        prefetch(b, at(b, ahead, line * TILE_BYTES))


def emit_block_int8(module: ir.Module, unit: TileUnit, row_tiles: int) -> ir.Function:
    name = f"triolet_gemm_int8_{unit.name}_{row_tiles}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, ARGUMENTS)
    block = Block(*function.args)
    tiles, sums, half_tiles = Tiles(b, unit, block, row_tiles), room(b, SUMS_BYTES), room(b, 2 * TILE)
    stride = prefetch_stride(b, block.following, block.a, 2 * TILE)

    def whole(index: ir.Value, _: Values) -> Values:
        prefetch_pair(b, block, index, stride)
        place = at(b, scaled(b, int64(0), index, TILE_BYTES), HEADER_BYTES)
        tiles.multiply([scaled(b, panel, index, TILE) for panel in tiles.panels], place, unit.multiply_bytes)
        return []

    def rest(_: ir.Value, __: Values) -> Values:
        first = b.sub(block.steps, int64(STEPS))
        for panel, start in enumerate(tiles.panels):
            for step in range(STEPS):
                own = scaled(b, start, b.add(first, int64(step)), VECTOR_BYTES)
                value = constant(i32, 0) if step < STEPS // 2 else load(b, own, VI, 64)
                store(b, value, at(b, half_tiles, panel * TILE + step * VECTOR_BYTES), 64)
        place = at(b, scaled(b, int64(0), first, 4), HEADER_BYTES)
        tiles.multiply([at(b, half_tiles, panel * TILE) for panel in range(2)], place, unit.multiply_bytes)
        return []

    def write_panel(panel: ir.Value, _: Values) -> Values:
        w = b.add(block.weights, b.mul(panel, block.panel_bytes))
        scale = load(b, b.add(block.scales, b.mul(panel, block.panel_scale_bytes)), VF)

        def write_row(row: ir.Value, _: Values) -> Values:
            header = b.add(block.a, b.mul(row, block.a_stride))
            total = load(b, place_of(b, sums, panel, row), VI, 64)
            total = b.add(total, wide_sums(b, [header], block.a_stride, w, block.steps)[0])
            write_row_of(b, block, panel, row, dequantise(b, [total], [header], scale)[0])
            return []

        loop(b, block.rows, [], write_row)
        return []

    prefetch(b, block.scales)
    tiles.zero()
    loop(b, b.lshr(block.steps, int64(4)), [], whole)
    loop(b, b.and_(b.lshr(block.steps, int64(3)), int64(1)), [], rest)
    tiles.store(sums)
    loop(b, block.panels, [], write_panel)
    b.ret_void()
    return function


def room(b: ir.IRBuilder, size: int) -> ir.Value:
    return b.ptrtoint(b.alloca(VI, size=ir.Constant(i32, size // VECTOR_BYTES)), i64)


def place_of(b: ir.IRBuilder, sums: ir.Value, panel: ir.Value, row: ir.Value) -> ir.Value:
    return scaled(b, sums, b.add(b.mul(panel, int64(MOST_TILE_ROWS)), row), VECTOR_BYTES)


def write_row_of(b: ir.IRBuilder, block: Block, panel: ir.Value, row: ir.Value, value: ir.Value) -> None:
    target = b.add(scaled(b, block.out, panel, VECTOR_BYTES), b.mul(row, block.out_stride))
    write_rows(b, [value], target, block.out_stride, block.add)
