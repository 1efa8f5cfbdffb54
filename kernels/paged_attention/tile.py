"""The attention micro-kernel as LLVM IR: a few query rows of one kv head over the blocks of one sequence.

A row is (token, query head of the group). Online softmax, one block of 64 tokens after the other, in base 2 (the
queries come scaled by log2(e) / sqrt(size)). Every row carries its own first and last visible key; a block that it
does not see leaves its maximum, sum and output exactly as they were (the factor is 2**0 and the probabilities are
zeros), and so do the masked keys of a block. Hence a row's result does not depend on the rows that share its tile,
nor on how its prompt was chunked.

No value row beyond the last key that any row of the tile sees is multiplied: 0 * NaN would be NaN.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd import dot
from ..simd.arithmetic import exp2, maximum, reciprocal, reduce_maximum, reduce_sum, round_bfloat16
from ..simd.functions import Values, loop, new_function, switch_on_rows
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
    lane_numbers,
    load,
    prefetch,
    scaled,
    splat,
    store,
)
from ..simd.target import wide_registers
from .cache import BLOCK_TOKENS, WORD_STRIDE

ROW_VARIANTS = range(1, 7)
MOST_ROWS = ROW_VARIANTS[-1] if wide_registers() else 4  # that keep their accumulators in registers
TOKEN_VECTORS = BLOCK_TOKENS // LANES
STRIP_VECTORS = 2 if wide_registers() else 1  # of the output at a time; a padded head has an even number
NEVER = -1e30  # the score of a key that is not seen, and the maximum before the first one
DESCRIPTOR_BYTES = 24  # per row: address of its output, first visible key, last visible key

ARGUMENTS = "iiiiiiiiii"


def scratch_bytes(padded_head: int) -> int:
    """Working memory of one thread: per row a maximum, a sum, a factor, 64 probabilities and the output so far."""
    return ROW_VARIANTS[-1] * (3 * VECTOR_BYTES + BLOCK_TOKENS * 4 + padded_head * 4)


def emit(module: ir.Module, weight_format: str) -> ir.Function:
    """f(rows, queries, query stride, descriptors, table, first block, blocks, keys seen, cache, block stride,
    scratch, size).

    `table` is the address of the int32 block table, `keys seen` one more than the last key that the last row sees,
    `cache` the address of this kv head's region in block 0.
    """
    cache_format = "float32" if weight_format == "float32" else "bfloat16"
    name = f"triolet_attention_{cache_format}"
    if name in module.globals:
        return module.globals[name]
    return switch_on_rows(
        module, name, "i" + ARGUMENTS, ROW_VARIANTS, lambda m, rows: _Tile(m, cache_format, rows).function
    )


class _Tile:
    """Builds the function for one row count; the attributes are the values that all its parts use."""

    def __init__(self, module: ir.Module, cache_format: str, rows: int) -> None:
        self.rows, self.format = rows, cache_format
        self.pairs = 1 if cache_format == "float32" else 2  # values of a word
        name = f"triolet_attention_{cache_format}_{rows}"
        self.function, self.b = new_function(module, name, "i" + ARGUMENTS)
        b = self.b
        self.queries, self.query_stride, self.descriptors, self.table, first, blocks, self.seen, self.cache = (
            self.function.args[:8]
        )
        self.block_stride, scratch, self.size = self.function.args[8:]
        self.maxima, self.sums, self.factors = (at(b, scratch, i * rows * VECTOR_BYTES) for i in range(3))
        self.probabilities = at(b, scratch, 3 * rows * VECTOR_BYTES)
        self.probability_stride = BLOCK_TOKENS * 4 // self.pairs
        self.output = at(b, self.probabilities, rows * BLOCK_TOKENS * 4)
        self.words = b.sdiv(self.size, int64(self.pairs))
        self.strips = b.sdiv(self.size, int64(STRIP_VECTORS * LANES))
        self.last_block = b.add(first, b.sub(blocks, int64(1)))
        self._start()
        loop(b, blocks, [], lambda index, _: self._block(b.add(first, index)))
        self._finish()
        b.ret_void()

    def _region(self, block: ir.Value) -> ir.Value:
        entry = load(self.b, scaled(self.b, self.table, block, 4), i32)
        return self.b.add(self.cache, self.b.mul(self.b.sext(entry, i64), self.block_stride))

    def _start(self) -> None:
        b = self.b
        for row in range(self.rows):
            store(b, constant(f32, NEVER), at(b, self.maxima, row * VECTOR_BYTES), 64)
            store(b, constant(f32, 0.0), at(b, self.sums, row * VECTOR_BYTES), 64)

        def clear(index: ir.Value, _: Values) -> Values:
            store(b, constant(f32, 0.0), scaled(b, self.output, index, VECTOR_BYTES), 64)
            return []

        loop(b, b.mul(self.strips, int64(STRIP_VECTORS * self.rows)), [], clear)

    def _block(self, block: ir.Value) -> Values:
        b = self.b
        region = self._region(block)
        after = b.add(block, int64(1))
        after = b.select(b.icmp_signed("<", after, self.last_block), after, self.last_block)
        following = self._region(after)
        start = b.mul(block, int64(BLOCK_TOKENS))
        scores = self._scores(region, following)
        for row in range(self.rows):
            self._softmax(row, scores[row * TOKEN_VECTORS : (row + 1) * TOKEN_VECTORS], start)
        values = b.mul(self.size, int64(BLOCK_TOKENS * 4 // self.pairs))
        left = b.sub(self.seen, start)
        visible = b.select(b.icmp_signed("<", left, int64(BLOCK_TOKENS)), left, int64(BLOCK_TOKENS))
        self._accumulate(b.add(region, values), b.add(following, values), visible)
        return []

    def _scores(self, region: ir.Value, following: ir.Value) -> Values:
        """[row][token vector] of query . key, summed over the dimensions in order; prefetches the next block's keys."""
        b, rows = self.b, self.rows
        width = TOKEN_VECTORS if wide_registers() or rows == 1 else 1
        found: dict[int, ir.Value] = {}
        for first in range(0, TOKEN_VECTORS, width):

            def body(index: ir.Value, totals: Values, first: int = first) -> Values:
                totals = list(totals)
                keys, query = scaled(b, region, index, WORD_STRIDE), scaled(b, self.queries, index, 4)
                ahead = scaled(b, following, index, WORD_STRIDE)
                vectors = []
                for v in range(first, first + width):
                    prefetch(b, at(b, ahead, v * VECTOR_BYTES))
                    vectors.append(load(b, at(b, keys, v * VECTOR_BYTES), VI, 64))
                for row in range(rows):
                    x = load(b, scaled(b, query, self.query_stride, row), i32)
                    for v in range(width):
                        slot = row * width + v
                        totals[slot] = dot.step(b, self.format, totals[slot], vectors[v], x)
                return totals

            totals = loop(b, self.words, [dot.zero(self.format)] * (rows * width), body)
            for row in range(rows):
                for v in range(width):
                    found[row * TOKEN_VECTORS + first + v] = totals[row * width + v]
        return [found[slot] for slot in sorted(found)]

    def _softmax(self, row: int, scores: Values, start: ir.Value) -> None:
        """Probabilities of this block for one row, its new maximum and sum, and the factor for its output so far."""
        b = self.b
        limits = [load(b, at(b, self.descriptors, row * DESCRIPTOR_BYTES + offset), i64) for offset in (8, 16)]
        lowest, highest = (splat(b, b.trunc(b.sub(limit, start), i32)) for limit in limits)
        seen = []
        for v in range(TOKEN_VECTORS):
            token = lane_numbers(v * LANES)
            seen.append(b.and_(b.icmp_signed(">=", token, lowest), b.icmp_signed("<=", token, highest)))
        masked = [b.select(seen[v], scores[v], constant(f32, NEVER)) for v in range(TOKEN_VECTORS)]
        largest = masked[0]
        for other in masked[1:]:
            largest = maximum(b, largest, other)
        places = [at(b, base, row * VECTOR_BYTES) for base in (self.maxima, self.sums, self.factors)]
        before, total = (load(b, place, VF, 64) for place in places[:2])
        after = maximum(b, splat(b, reduce_maximum(b, largest)), before)
        factor = exp2(b, b.fsub(before, after))
        total = b.fmul(total, factor)
        for v in range(TOKEN_VECTORS):
            probability = b.select(seen[v], exp2(b, b.fsub(masked[v], after)), constant(f32, 0.0))
            total = b.fadd(total, probability)
            if self.format == "bfloat16":
                probability = round_bfloat16(b, probability)
            offset = row * self.probability_stride + v * LANES * 4 // self.pairs
            store(b, probability, at(b, self.probabilities, offset), 32)
        for value, place in zip((after, total, factor), places, strict=True):
            store(b, value, place, 64)

    def _accumulate(self, values: ir.Value, following: ir.Value, visible: ir.Value) -> None:
        """output = output * factor + probabilities . values, over the visible tokens in order."""
        b, rows = self.b, self.rows
        row_bytes = b.mul(self.size, int64(4))  # of one word row of V: a token, or a pair of tokens
        whole = visible if self.pairs == 1 else b.lshr(visible, int64(1))

        def strip(index: ir.Value, _: Values) -> Values:
            offset = b.mul(index, int64(STRIP_VECTORS * VECTOR_BYTES))
            column, ahead = b.add(values, offset), b.add(following, offset)
            places, totals = [], []
            for row in range(rows):
                factor = load(b, at(b, self.factors, row * VECTOR_BYTES), VF, 64)
                target = b.add(scaled(b, self.output, row_bytes, row), offset)
                for v in range(STRIP_VECTORS):
                    places.append(at(b, target, v * VECTOR_BYTES))
                    totals.append(b.fmul(load(b, places[-1], VF, 64), factor))

            def add(word: ir.Value, totals: Values, keep: ir.Value | None = None) -> Values:
                totals = list(totals)
                along = b.mul(word, row_bytes)
                vectors = []
                for v in range(STRIP_VECTORS):
                    prefetch(b, at(b, b.add(ahead, along), v * VECTOR_BYTES))
                    vectors.append(load(b, at(b, b.add(column, along), v * VECTOR_BYTES), VI, 64))
                    if keep is not None:
                        vectors[v] = b.and_(vectors[v], keep)
                for row in range(rows):
                    place = at(b, scaled(b, self.probabilities, word, 4), row * self.probability_stride)
                    x = load(b, place, i32)
                    for v in range(STRIP_VECTORS):
                        slot = row * STRIP_VECTORS + v
                        totals[slot] = dot.step(b, self.format, totals[slot], vectors[v], x)
                return totals

            totals = loop(b, whole, totals, add)
            if self.pairs == 2:  # an odd last token: its pair's other half is no value of this sequence
                odd = b.and_(visible, int64(1))
                totals = loop(b, odd, totals, lambda _, values: add(whole, values, constant(i32, 0xFFFF)))
            for place, total in zip(places, totals, strict=True):
                store(b, total, place, 64)
            return []

        loop(b, self.strips, [], strip)

    def _finish(self) -> None:
        b = self.b
        for row in range(self.rows):
            total = reduce_sum(b, load(b, at(b, self.sums, row * VECTOR_BYTES), VF, 64))
            inverse = splat(b, reciprocal(b, total))
            target = load(b, at(b, self.descriptors, row * DESCRIPTOR_BYTES), i64)
            source = b.add(self.output, b.mul(self.size, int64(4 * row)))

            def scale(index: ir.Value, _: Values, inverse: ir.Value = inverse, target: ir.Value = target,
                      source: ir.Value = source) -> Values:
                value = load(b, scaled(b, source, index, VECTOR_BYTES), VF, 64)
                store(b, b.fmul(value, inverse), scaled(b, target, index, VECTOR_BYTES))
                return []

            loop(b, b.mul(self.strips, int64(STRIP_VECTORS)), [], scale)
