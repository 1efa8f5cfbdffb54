"""The attention micro-kernel as LLVM IR: a few query rows of one kv head over the blocks of one sequence.

A row is (token, query head of the group). Online softmax, one block of 64 tokens after the other, in base 2 (the
queries come scaled by log2(e) / sqrt(size)). Every row has its own first and last visible key, and its own start: a
sink, the score of a key that is not there, takes part in the maximum and the sum alone. A block that it does not
see leaves its maximum, sum and output exactly unchanged (the factor is 2**0 and the probabilities are zeros), and so do
the masked keys of a block. So a row's result depends neither on the other rows of its tile nor on how its prompt was
chunked.

Value rows past the last key that any row of the tile sees are not multiplied: 0 * NaN would be NaN. Of a partly filled
block, only the vectors of visible keys are read, and only these are prefetched: at 65 tokens, a whole second block
would double the memory traffic. This file is for float32 and bfloat16 caches; int8_tile.py and amx_tile.py replace both
products.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd import dot
from ..simd.amx import TILE_ROWS
from ..simd.arithmetic import reciprocal, reduce_sum
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    constant,
    f32,
    i32,
    i64,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    store,
)
from ..simd.target import wide_registers
from .cache import BLOCK_TOKENS, WORD_STRIDE, scales_of, values_of
from .softmax import DESCRIPTOR_BYTES, FACTOR, MAXIMUM, RECORD_BYTES, SCORES, SUM, TOKEN_VECTORS
from .softmax import emit as emit_softmax

ROW_VARIANTS = range(1, 7)
MOST_ROWS = ROW_VARIANTS[-1] if wide_registers() else 4  # whose accumulators fit into registers
STRIP_VECTORS = 2 if wide_registers() else 1  # output vectors at a time; a padded head has an even number

ARGUMENTS = "iiiiiiiiiiiif"


def scratch_bytes(padded_head: int, rows: int) -> int:
    """Working memory of one thread: per row, its softmax record and the output so far; of tiles, 32 tokens' values."""
    copied = TILE_ROWS * padded_head * 4 if rows > MOST_ROWS else 0
    return rows * (RECORD_BYTES + padded_head * 4) + copied


def at_most(b: ir.IRBuilder, value: ir.Value, limit: int) -> ir.Value:
    return b.select(b.icmp_signed("<", value, int64(limit)), value, int64(limit))


class Tile:
    """Builds the function for one row count, or for any (rows None: it is the first argument, before these).

    The attributes are values shared by all its parts.

    f(queries, query stride, descriptors, table, first block, blocks, keys seen, cache, block stride, after, after seen,
    scratch, size, cap): `table` is the address of the int32 block table, `keys seen` one more than the last key that
    the last row sees, `cache` the address of this kv head's region in block 0. `after` is the region to prefetch during
    the last block; `after seen` of its tokens will be seen. `cap` is the soft cap of scores in base 2; 0: none.
    """

    def __init__(self, module: ir.Module, name: str, cache_format: str, rows: int | None) -> None:
        self.rows, self.format = rows or 0, cache_format
        self.packed = dot.K_PER_STEP[cache_format]  # values per word
        self.broadcast = dot.broadcast_format(cache_format)
        self.broadcasts = self.packed // dot.K_PER_STEP[self.broadcast]  # of a row, for a word
        self.function, self.b = new_function(module, name, ("i" if rows else "ii") + ARGUMENTS)
        b = self.b
        self.count = int64(rows) if rows else self.function.args[0]
        arguments = self.function.args[-1 - len(ARGUMENTS) :]
        self.queries, self.query_stride, self.descriptors, self.table, first, blocks, self.seen = arguments[:7]
        self.cache, self.block_stride, self.after, self.after_seen, scratch, self.size, self.cap = arguments[7:]
        self.records = scratch
        self.output = scaled(b, scratch, self.count, RECORD_BYTES)
        self.words = b.sdiv(self.size, int64(self.packed))
        self.strips = b.sdiv(self.size, int64(STRIP_VECTORS * LANES))
        self.last_block = b.add(first, b.sub(blocks, int64(1)))
        self.all_see_from, self.all_see_to = self._common_keys()
        self._start()
        loop(b, blocks, [], lambda index, _: self._block(b.add(first, index)))
        self._finish()
        b.ret_void()

    def _region(self, block: ir.Value) -> ir.Value:
        entry = load(self.b, scaled(self.b, self.table, block, 4), i32)
        return self.b.add(self.cache, self.b.mul(self.b.sext(entry, i64), self.block_stride))

    def _values(self, region: ir.Value) -> ir.Value:
        return values_of(self.b, self.format, region, self.size)

    def _common_keys(self) -> tuple[ir.Value, ir.Value]:
        """The first and the last key that all rows see: rows are in the order of their positions."""
        last = scaled(self.b, self.descriptors, self.b.sub(self.count, int64(1)), DESCRIPTOR_BYTES)
        return load(self.b, at(self.b, last, 8), i64), load(self.b, at(self.b, self.descriptors, 16), i64)

    def _record(self, row: int | ir.Value, offset: int) -> ir.Value:
        if isinstance(row, int):
            return at(self.b, self.records, row * RECORD_BYTES + offset)
        return at(self.b, scaled(self.b, self.records, row, RECORD_BYTES), offset)

    def _start(self) -> None:
        b = self.b

        def of_row(row: ir.Value, _: Values) -> Values:
            start = at(b, scaled(b, self.descriptors, row, DESCRIPTOR_BYTES), 24)
            total = b.insert_element(constant(f32, 0.0), load(b, at(b, start, 4), f32), ir.Constant(i32, 0))
            store(b, splat(b, load(b, start, f32)), self._record(row, MAXIMUM), 64)
            store(b, total, self._record(row, SUM), 64)
            return []

        def clear(index: ir.Value, _: Values) -> Values:
            store(b, constant(f32, 0.0), scaled(b, self.output, index, VECTOR_BYTES), 64)
            return []

        loop(b, self.count, [], of_row)
        loop(b, b.mul(b.mul(self.strips, int64(STRIP_VECTORS)), self.count), [], clear)

    def _block(self, block: ir.Value) -> Values:
        b = self.b
        region = self._region(block)
        is_last = b.icmp_signed("==", block, self.last_block)
        following = self._region(b.select(is_last, block, b.add(block, int64(1))))
        following = b.select(is_last, self.after, following)
        start = b.mul(block, int64(BLOCK_TOKENS))
        left = b.sub(self.seen, start)
        visible = at_most(b, left, BLOCK_TOKENS)
        expected = at_most(b, b.select(is_last, self.after_seen, b.sub(left, int64(BLOCK_TOKENS))), BLOCK_TOKENS)
        values, ahead = self._values(region), self._values(following)
        lines = [int64(0)]  # of a word row of the next keys; the first one again if no key will be read
        for v in range(1, TOKEN_VECTORS):
            needed = b.icmp_signed("<", int64(v * LANES), expected)
            lines.append(b.select(needed, int64(v * VECTOR_BYTES), int64(0)))
        self._scores(region, [b.add(following, line) for line in lines], visible)
        self._softmax(region, values, start)
        self._accumulate(values, ahead, visible, expected)
        return []

    def _scores(self, region: ir.Value, ahead: Values, visible: ir.Value) -> None:
        """Query . key into every row's record, summed over the dimensions in order; prefetches the next block's keys.

        It computes all vectors of 16 keys with a visible one, or somewhat more; the softmax masks the others.
        """
        b = self.b
        if wide_registers() or self.rows == 1:
            self._by_width(region, ahead, visible, (1, 2, TOKEN_VECTORS))
            return
        self._score(region, ahead, 0, 1)
        for first in range(1, TOKEN_VECTORS):
            with b.if_then(b.icmp_signed("<", int64(first * LANES), visible)):
                self._score(region, [], first, 1)

    def _by_width(self, region: ir.Value, ahead: Values, visible: ir.Value, widths: tuple[int, ...]) -> None:
        if len(widths) == 1:
            self._score(region, ahead, 0, widths[0])
            return
        with self.b.if_else(self.b.icmp_signed("<=", visible, int64(widths[0] * LANES))) as (few, more):
            with few:
                self._score(region, ahead, 0, widths[0])
            with more:
                self._by_width(region, ahead, visible, widths[1:])

    def _score(self, region: ir.Value, ahead: Values, first: int, width: int) -> None:
        totals = self._sums(region, ahead, first, [dot.zero(self.format)] * (self.rows * width))
        for slot, total in enumerate(totals):
            place = self._record(slot // width, SCORES + (first + slot % width) * VECTOR_BYTES)
            store(self.b, total, place, 64)

    def _sums(self, region: ir.Value, ahead: Values, first: int, totals: Values) -> Values:
        return self._dots(region, ahead, self.queries, first, totals)

    def _dots(self, region: ir.Value, ahead: Values, queries: ir.Value, first: int, totals: Values) -> Values:
        """totals [row][token vectors from `first` on] plus query . key; prefetches a line of each `ahead` per word."""
        b, width = self.b, len(totals) // self.rows

        def body(index: ir.Value, totals: Values) -> Values:
            totals = list(totals)
            keys, query = scaled(b, region, index, WORD_STRIDE), scaled(b, queries, index, 4 * self.broadcasts)
            for line in ahead:
                prefetch(b, scaled(b, line, index, WORD_STRIDE))
            vectors = [load(b, at(b, keys, v * VECTOR_BYTES), VI, 64) for v in range(first, first + width)]
            return self._word(totals, vectors, [scaled(b, query, self.query_stride, row) for row in range(self.rows)])

        return loop(b, self.words, totals, body)

    def _softmax(self, region: ir.Value, values: ir.Value, start: ir.Value) -> None:
        b = self.b
        end = b.add(start, int64(BLOCK_TOKENS - 1))
        inside = b.and_(b.icmp_signed(">=", start, self.all_see_from), b.icmp_signed("<=", end, self.all_see_to))
        scales = [scales_of(b, half, self.size) for half in (region, values)]
        ends = b.add(self.queries, b.mul(self.size, int64(2)))
        arguments = [
            self.count,
            self.records,
            self.descriptors,
            start,
            ends,
            self.query_stride,
            *scales,
            self.cap,
        ]
        with b.if_else(inside) as (whole, part):
            with whole:
                b.call(emit_softmax(b.module, self.format, masked=False), arguments)
            with part:
                b.call(emit_softmax(b.module, self.format, masked=True), arguments)

    def _accumulate(self, values: ir.Value, following: ir.Value, visible: ir.Value, expected: ir.Value) -> None:
        """output = output * factor + probabilities . values, over the visible tokens in order."""
        b = self.b
        shift = int64(self.packed - 1)
        whole = b.lshr(visible, shift)
        needed = b.lshr(b.add(expected, shift), shift)

        def strip(index: ir.Value, _: Values) -> Values:
            offset = b.mul(index, int64(STRIP_VECTORS * VECTOR_BYTES))
            column, ahead = b.add(values, offset), b.add(following, offset)
            places, totals = self._output(offset)
            totals = self._products(whole, totals, column, ahead, needed)
            if self.packed == 2:  # an odd last token: the other half of its pair is not of this sequence
                odd = b.and_(visible, int64(1))
                totals = self._products(odd, totals, column, ahead, needed, whole)
            for place, total in zip(places, totals, strict=True):
                store(b, total, place, 64)
            return []

        loop(b, self.strips, [], strip)
        self._prefetch_rest(following, whole, needed)

    def _prefetch_rest(self, following: ir.Value, words: ir.Value, needed: ir.Value) -> None:
        """Prefetch the word rows of the next values from `words` on, which a short block's products do not reach."""
        b = self.b
        lines = b.mul(self.strips, int64(STRIP_VECTORS))  # of a word row
        start = b.add(following, b.mul(b.mul(words, lines), int64(VECTOR_BYTES)))

        def body(index: ir.Value, _: Values) -> Values:
            prefetch(b, scaled(b, start, index, VECTOR_BYTES))
            return []

        loop(b, b.mul(b.sub(needed, words), lines), [], body)

    def _output(self, offset: ir.Value) -> tuple[Values, Values]:
        """For a strip of every row's output: its address, and its values times the row's factor."""
        b = self.b
        places, scaled_output = [], []
        for row in range(self.rows):
            factor = load(b, self._record(row, FACTOR), VF, 64)
            target = b.add(self._output_of(int64(row)), offset)
            for v in range(STRIP_VECTORS):
                places.append(at(b, target, v * VECTOR_BYTES))
                scaled_output.append(b.fmul(load(b, places[-1], VF, 64), factor))
        return places, scaled_output

    def _products(
        self,
        count: ir.Value,
        totals: Values,
        column: ir.Value,
        ahead: ir.Value,
        needed: ir.Value,
        odd: ir.Value | None = None,
    ) -> Values:
        """totals plus probabilities . values of `count` words, or of the first token of the word `odd` alone.

        Prefetches the same number of words at `ahead`, at most `needed`.
        """
        b = self.b
        row_bytes = b.mul(self.size, int64(4))  # of one word row of V

        def body(index: ir.Value, totals: Values) -> Values:
            totals = list(totals)
            word = index if odd is None else odd
            along = b.mul(word, row_bytes)
            wanted = b.select(b.icmp_signed("<", word, needed), along, int64(0))
            vectors = []
            for v in range(STRIP_VECTORS):
                prefetch(b, at(b, b.add(ahead, wanted), v * VECTOR_BYTES))
                vectors.append(load(b, at(b, b.add(column, along), v * VECTOR_BYTES), VI, 64))
                if odd is not None:
                    vectors[v] = b.and_(vectors[v], constant(i32, 0xFFFF))
            scores = [self._record(row, SCORES) for row in range(self.rows)]
            return self._word(totals, vectors, [scaled(b, start, word, 4 * self.broadcasts) for start in scores])

        return loop(b, count, totals, body)

    def _word(self, totals: Values, vectors: Values, xs: Values) -> Values:
        """totals [row][vector] plus a word of each vector times what a row has at its address in `xs`."""
        b, totals = self.b, list(totals)
        for part in range(self.broadcasts):
            # All rows take one half of the pairs, then the other: both at once would not fit into registers.
            own = vectors if self.broadcasts == 1 else [dot.half_of(b, vector, part) for vector in vectors]
            for row, x in enumerate(xs):
                value = load(b, at(b, x, 4 * part), i32)
                for v, vector in enumerate(own):
                    slot = row * len(own) + v
                    totals[slot] = dot.step(b, self.broadcast, totals[slot], vector, value)
        return totals

    def _finish(self) -> None:
        b = self.b

        def of_row(row: ir.Value, _: Values) -> Values:
            total = reduce_sum(b, load(b, self._record(row, SUM), VF, 64))
            inverse = splat(b, reciprocal(b, total))
            target = load(b, scaled(b, self.descriptors, row, DESCRIPTOR_BYTES), i64)
            source = self._output_of(row)

            def scale(index: ir.Value, _: Values) -> Values:
                value = load(b, scaled(b, source, index, VECTOR_BYTES), VF, 64)
                store(b, b.fmul(value, inverse), scaled(b, target, index, VECTOR_BYTES))
                return []

            return loop(b, b.mul(self.strips, int64(STRIP_VECTORS)), [], scale)

        loop(b, self.count, [], of_row)

    def _output_of(self, row: ir.Value) -> ir.Value:
        return self.b.add(self.output, self.b.mul(self.b.mul(self.size, int64(4)), row))
