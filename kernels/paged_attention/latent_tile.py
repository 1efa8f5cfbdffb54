"""Attention whose keys and values are the same cached rows (multi-head latent attention, arXiv:2405.04434).

A region is laid out as the values of cache.py, and nothing else is cached: a row is a token's latent vector and, behind
it, its rotated key. The products with the values are Tile's, over the whole row: who reads the result leaves out what
is behind the latent vector. The scores are dot products along a row here, in float32 (the queries too: of bfloat16
pairs each half is widened), and their 16 lanes are summed at the end, always by the same tree.

That costs no prefetch of its own: the second pass over a block prefetches the next one, and both passes read the same.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.arithmetic import fma, reduce_sum
from ..simd.functions import Values, loop
from ..simd.lanes import LANES, VECTOR_BYTES, VF, VI, at, constant, f32, i32, int64, load, scaled, store
from ..simd.target import wide_registers
from .softmax import SCORES
from .tile import Tile

TOGETHER = 4 if wide_registers() else 2  # tokens whose sums of all rows stay in registers


class LatentTile(Tile):
    """`size` is that of a cached row; a query row has as many float32."""

    def _values(self, region: ir.Value) -> ir.Value:
        return region

    def _scores(self, region: ir.Value, ahead: Values, visible: ir.Value) -> None:
        """Query . row into every row's record, TOGETHER tokens at a time; somewhat more than are visible."""
        b = self.b
        groups = b.sdiv(b.add(visible, int64(TOGETHER - 1)), int64(TOGETHER))
        word_bytes = b.mul(self.size, int64(4))  # of a row of words, each `packed` tokens
        words = TOGETHER // self.packed

        def group(index: ir.Value, _: Values) -> Values:
            first = b.add(region, b.mul(index, b.mul(word_bytes, int64(words))))
            starts = [b.add(first, b.mul(word_bytes, int64(word))) for word in range(words)]
            totals = [constant(f32, 0.0)] * (self.rows * TOGETHER)
            totals = loop(b, b.sdiv(self.size, int64(LANES)), totals, lambda i, sums: self._along(i, starts, sums))
            for slot, total in enumerate(totals):
                row, token = divmod(slot, TOGETHER)
                place = scaled(b, self._record(row, SCORES), index, 4 * TOGETHER)
                store(b, reduce_sum(b, total), at(b, place, 4 * token))
            return []

        loop(b, groups, [], group)

    def _along(self, index: ir.Value, starts: Values, totals: Values) -> Values:
        """totals [row][token] plus 16 products of each."""
        b, tokens = self.b, list[ir.Value]()
        for start in starts:
            vector = load(b, scaled(b, start, index, VECTOR_BYTES), VI, 64)
            if self.packed == 2:  # a bfloat16 is the upper half of a float32; the first token is the lower half
                tokens.append(b.bitcast(b.shl(vector, constant(i32, 16)), VF))
                vector = b.and_(vector, constant(i32, -65536))
            tokens.append(b.bitcast(vector, VF))
        sums = list(totals)
        for row in range(self.rows):
            query = load(b, scaled(b, scaled(b, self.queries, index, VECTOR_BYTES), self.query_stride, row), VF)
            for place, token in enumerate(tokens):
                slot = row * TOGETHER + place
                sums[slot] = fma(b, query, token, sums[slot])
        return sums
