"""Both products of attention over an int8 cache: four values per step, exact in int32.

A query has 16 bits (query.py). So a block's keys are read twice, for its upper and its lower bytes, and the sum of the
upper products is shifted in between. The probabilities have 16 bits too, so the values are also read twice. Each of the
two passes prefetches every second vector of the next block. Prefetching all in the first pass made a block from memory
take 1.2 times as long, since a core can have few misses in flight.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd import dot
from ..simd.arithmetic import fma
from ..simd.functions import Values, loop
from ..simd.lanes import VECTOR_BYTES, VF, VI, at, constant, i32, int64, load, prefetch, scaled, splat, store
from .cache import QUADS, SCALES_BYTES, scales_of
from .softmax import LOWER, UPPER, WEIGHT
from .tile import STRIP_VECTORS, Tile, at_most


class Int8Tile(Tile):
    def _sums(self, region: ir.Value, ahead: Values, first: int, totals: Values) -> Values:
        b = self.b
        if first == 0:
            self._prefetch_scales(ahead[0])
        totals = self._dots(region, ahead[0::2], self.queries, first, totals)
        totals = [b.shl(total, constant(i32, 8)) for total in totals]
        return self._dots(region, ahead[1::2], b.add(self.queries, self.size), first, totals)

    def _prefetch_scales(self, half: ir.Value) -> None:
        for offset in range(0, SCALES_BYTES, VECTOR_BYTES):
            prefetch(self.b, at(self.b, scales_of(self.b, half, self.size), offset))

    def _accumulate(self, values: ir.Value, following: ir.Value, visible: ir.Value, expected: ir.Value) -> None:
        """As for the other formats. Probabilities of unseen tokens are 0, and 0 times any byte is 0."""
        b = self.b
        quads, needed = (at_most(b, tokens, QUADS) for tokens in (visible, expected))
        self._prefetch_scales(following)

        def strip(index: ir.Value, _: Values) -> Values:
            offset = b.mul(index, int64(STRIP_VECTORS * VECTOR_BYTES))
            column, ahead = b.add(values, offset), b.add(following, offset)
            totals = [dot.zero("int8")] * (self.rows * STRIP_VECTORS)
            totals = self._quads(quads, totals, column, ahead, needed, UPPER, 0)
            totals = [b.shl(total, constant(i32, 8)) for total in totals]
            totals = self._quads(quads, totals, column, ahead, needed, LOWER, 1)
            places, outputs = self._output(offset)
            for slot, (place, output) in enumerate(zip(places, outputs, strict=True)):
                weight = load(b, self._record(slot // STRIP_VECTORS, WEIGHT), VF, 64)
                store(b, fma(b, b.sitofp(totals[slot], VF), weight, output), place, 64)
            return []

        loop(b, self.strips, [], strip)
        self._prefetch_rest(following, quads, needed)

    def _quads(
        self,
        count: ir.Value,
        totals: Values,
        column: ir.Value,
        ahead: ir.Value,
        needed: ir.Value,
        half: int,
        share: int,
    ) -> Values:
        b = self.b
        row_bytes = b.mul(self.size, int64(4))  # of four tokens

        def body(index: ir.Value, totals: Values) -> Values:
            totals = list(totals)
            along = b.mul(index, row_bytes)
            wanted = b.select(b.icmp_signed("<", index, needed), along, int64(0))
            vectors = []
            for v in range(STRIP_VECTORS):
                if STRIP_VECTORS == 1 or v == share:
                    prefetch(b, at(b, b.add(ahead, wanted), v * VECTOR_BYTES))
                vectors.append(load(b, at(b, b.add(column, along), v * VECTOR_BYTES), VI, 64))
            for row in range(self.rows):
                x = splat(b, load(b, scaled(b, self._record(row, half), index, 4), i32))
                for v in range(STRIP_VECTORS):
                    slot = row * STRIP_VECTORS + v
                    totals[slot] = dot.quad_step(b, totals[slot], x, vectors[v])
            return totals

        return loop(b, count, totals, body)
