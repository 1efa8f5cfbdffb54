"""Both products of attention by a tile unit (simd/amx.py) over a bfloat16 cache: up to 16 query rows at once.

Word rows of cached keys are tiles of the right factor as they lie in memory, with 16 tokens; so are pairs of tokens'
values, with 16 dimensions. Queries are the left factor of one product, the records' probabilities that of the other.

As in gemm/tile_amx_bfloat16.py the unit does all of it, also for a single row, whose result must be the same beside
others. A product with values sums from zero and is then added to the output, which the vector unit has scaled.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.amx import TILE_BYTES, TILE_ROWS, TileUnit
from ..simd.arithmetic import fma
from ..simd.functions import Values, loop
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    i32,
    i64,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    store,
)
from .cache import WORD_STRIDE
from .softmax import FACTOR, RECORD_BYTES, SCORES, TOKEN_VECTORS
from .tile import STRIP_VECTORS, Tile

TILE_TOKENS = 2 * TILE_ROWS  # of values: 16 pairs
_LEFT, _RIGHT = (4, 5), (6, 7)  # the totals come before
_STRIP_BYTES = STRIP_VECTORS * VECTOR_BYTES


class AmxTile(Tile):
    """f(rows, ...) for 1 to 16 rows."""

    def __init__(self, module: ir.Module, name: str, unit: TileUnit) -> None:
        self._unit = unit
        super().__init__(module, name, "bfloat16", None)

    def _start(self) -> None:
        b = self.b
        super()._start()
        self._values_copy = b.add(self.output, b.mul(b.mul(self.size, int64(4)), self.count))
        with b.goto_entry_block():
            self._products_room = b.ptrtoint(b.alloca(VI, size=ir.Constant(i32, STRIP_VECTORS * TILE_ROWS)), i64)
        self._state = self._unit.configure(b, self.count)

    def _finish(self) -> None:
        self._unit.release(self.b, self._state)
        super()._finish()

    def _scores(self, region: ir.Value, ahead: Values, visible: ir.Value) -> None:
        self._by_width(region, ahead, visible, (1, 2, TOKEN_VECTORS))

    def _score(self, region: ir.Value, ahead: Values, first: int, width: int) -> None:
        b, unit, state = self.b, self._unit, self._state
        totals = range(first, first + width)
        for total in totals:
            unit.zero(b, state, total)

        def body(index: ir.Value, _: Values) -> Values:
            keys = scaled(b, region, index, TILE_ROWS * WORD_STRIDE)
            for line in ahead:
                for word in range(TILE_ROWS):
                    prefetch(b, at(b, scaled(b, line, index, TILE_ROWS * WORD_STRIDE), word * WORD_STRIDE))
            unit.load(b, state, _LEFT[0], scaled(b, self.queries, index, TILE_BYTES), self.query_stride)
            for total in totals:
                right = _RIGHT[total % 2]
                unit.load(b, state, right, at(b, keys, total * VECTOR_BYTES), int64(WORD_STRIDE))
                unit.multiply_pairs(b, state, total, _LEFT[0], right)
            return []

        loop(b, b.sdiv(self.words, int64(TILE_ROWS)), [], body)
        for total in totals:
            unit.store(b, state, total, self._record(0, SCORES + total * VECTOR_BYTES), int64(RECORD_BYTES))

    def _accumulate(self, values: ir.Value, following: ir.Value, visible: ir.Value, expected: ir.Value) -> None:
        b = self.b
        last = self._last_tile(values, visible)
        needed = b.lshr(b.add(expected, int64(1)), int64(1))
        for half in range(2):
            self._unit.load(
                b, self._state, _LEFT[half], self._record(0, SCORES + half * TILE_BYTES), int64(RECORD_BYTES)
            )
        with b.if_else(b.icmp_signed("<=", visible, int64(TILE_TOKENS))) as (one, two):
            with one:
                self._strips([last], following, needed)
            with two:
                self._strips([values, last], following, needed)

    def _strips(self, tiles: Values, following: ir.Value, needed: ir.Value) -> None:
        """output = output * factor + probabilities . values, of 32 tokens for each address."""
        b, unit, state = self.b, self._unit, self._state
        row_bytes = b.mul(self.size, int64(4))  # of a word row of V

        def strip(index: ir.Value, _: Values) -> Values:
            offset = b.mul(index, int64(_STRIP_BYTES))
            self._prefetch_strip(b.add(following, offset), needed, row_bytes)
            for v in range(STRIP_VECTORS):
                unit.zero(b, state, v)
            for half, values in enumerate(tiles):
                column = b.add(values, offset)
                for v in range(STRIP_VECTORS):
                    unit.load(b, state, _RIGHT[v], at(b, column, v * VECTOR_BYTES), row_bytes)
                    unit.multiply_pairs(b, state, v, _LEFT[half], _RIGHT[v])
            for v in range(STRIP_VECTORS):
                unit.store(b, state, v, at(b, self._products_room, v * VECTOR_BYTES), int64(_STRIP_BYTES))

            def add_row(row: ir.Value, _: Values) -> Values:
                factor = load(b, self._record(row, FACTOR), VF, 64)
                for v in range(STRIP_VECTORS):
                    place = at(b, b.add(self._output_of(row), offset), v * VECTOR_BYTES)
                    product = load(
                        b, at(b, scaled(b, self._products_room, row, _STRIP_BYTES), v * VECTOR_BYTES), VF, 64
                    )
                    store(b, fma(b, load(b, place, VF, 64), factor, product), place, 64)
                return []

            return loop(b, self.count, [], add_row)

        loop(b, self.strips, [], strip)

    def _prefetch_strip(self, ahead: ir.Value, needed: ir.Value, row_bytes: ir.Value) -> None:
        b = self.b

        def body(index: ir.Value, _: Values) -> Values:
            for v in range(STRIP_VECTORS):
                prefetch(b, at(b, b.add(ahead, b.mul(index, row_bytes)), v * VECTOR_BYTES))
            return []

        loop(b, needed, [], body)

    def _last_tile(self, values: ir.Value, visible: ir.Value) -> ir.Value:
        """The last 32 values, or a copy with zeros behind the visible ones: 0 * NaN would be NaN."""
        b = self.b
        row_bytes = b.mul(self.size, int64(4))
        before = b.and_(b.sub(visible, int64(1)), int64(-TILE_TOKENS))  # tokens of the tiles before it
        values = b.add(values, b.mul(b.lshr(before, int64(1)), row_bytes))
        seen = b.sub(visible, before)
        copied = b.icmp_signed("<", seen, int64(TILE_TOKENS))
        with b.if_then(copied):

            def copy_pair(pair: ir.Value, _: Values) -> Values:
                left = b.sub(seen, b.shl(pair, int64(1)))  # visible tokens from this pair on
                one = b.select(b.icmp_signed("==", left, int64(1)), ir.Constant(i32, 0xFFFF), ir.Constant(i32, -1))
                mask = splat(b, b.select(b.icmp_signed("<=", left, int64(0)), ir.Constant(i32, 0), one))

                def copy(index: ir.Value, _: Values) -> Values:
                    place = scaled(b, b.mul(row_bytes, pair), index, VECTOR_BYTES)
                    value = b.and_(load(b, b.add(values, place), VI, 64), mask)
                    store(b, value, b.add(self._values_copy, place), 64)
                    return []

                return loop(b, b.sdiv(self.size, int64(LANES)), [], copy)

            loop(b, int64(TILE_ROWS), [], copy_pair)
        return b.select(copied, self._values_copy, values)
