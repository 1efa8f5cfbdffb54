"""Writes one row of values, however computed, as activations of the next GEMM, in the layout of layout.py.

float32 stays as it is. bfloat16 is rounded to nearest even. Integers follow the definitions in reference.py. int8's
scale needs the whole row first, so the values go through a scratch row that stays in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..simd.arithmetic import (
    absolute,
    maximum,
    nearest_integer,
    reduce_integer_sum,
    reduce_maximum,
    reduce_sum,
)
from ..simd.dot import K_PER_STEP, as_broadcast, broadcast_format
from ..simd.functions import Values, either, loop
from ..simd.lanes import (
    LANES,
    VI,
    at,
    constant,
    f32,
    float32,
    i8,
    i16,
    i32,
    int64,
    scaled,
    splat,
    store,
    vector,
    vector_at,
)
from .layout import (
    CENTRES,
    CORRECTION,
    ENTRY_BYTES,
    GROUP_BYTES,
    GROUP_OFFSET,
    GROUP_STARTS,
    GROUP_SUM,
    GROUP_SUMS,
    HEADER_BYTES,
    MOST_WIDE_QUADS,
    QUADS_A_WIDE_ONE,
    SCALE,
    SCALE_TO_OFFSET,
    WIDE_QUADS,
    WIDE_SHIFT,
)
from .reference import FAR, SMALLEST_MAXIMUM, WIDE_MEANS, WIDEST

ValueAt = Callable[[ir.Value], ir.Value]  # vector index -> 16 float32 values
BYTES = vector(i8, LANES)


def write_row(
    b: ir.IRBuilder, weight_format: str, values: ValueAt, k: ir.Value, out: ir.Value, scratch: ir.Value
) -> None:
    """Write the k values (a multiple of 32) to `out`; scratch holds k float32."""
    vectors = b.sdiv(k, int64(LANES))
    if weight_format == "int8":
        _write_int8(b, values, k, out, scratch)
        return
    if weight_format in ("int4", "stored"):
        _write_groups(b, values, vectors, out)
        return

    def body(index: ir.Value, _: Values) -> Values:
        value = values(index)
        if weight_format == "bfloat16":
            value = as_broadcast(b, value)
        store(b, value, scaled(b, out, index, 4 * LANES // K_PER_STEP[broadcast_format(weight_format)]))
        return []

    loop(b, vectors, [], body)


def _integers(b: ir.IRBuilder, value: ir.Value, inverse: ir.Value) -> ir.Value:
    return b.fptosi(nearest_integer(b, b.fmul(value, inverse)), VI)


def _write_groups(b: ir.IRBuilder, values: ValueAt, vectors: ir.Value, out: ir.Value) -> None:
    def group(index: ir.Value, _: Values) -> Values:
        first = b.mul(index, int64(2))
        pair = [values(first), values(b.add(first, int64(1)))]
        widest = maximum(b, absolute(b, pair[0]), absolute(b, pair[1]))
        largest = reduce_maximum(b, maximum(b, widest, constant(f32, SMALLEST_MAXIMUM)))
        bits = b.bitcast(b.fmul(largest, float32(1 / 127)), i32)
        bits = b.and_(b.add(bits, ir.Constant(i32, 0x7FFFFF)), ir.Constant(i32, 0x7F800000))
        inverse = splat(b, b.bitcast(b.sub(ir.Constant(i32, 254 << 23), bits), f32))
        offset = b.add(bits, ir.Constant(i32, SCALE_TO_OFFSET))
        target = scaled(b, out, index, GROUP_BYTES)
        integers = [_integers(b, value, inverse) for value in pair]
        for half in (0, 1):
            store(b, b.trunc(integers[half], BYTES), at(b, target, half * LANES))
        sums = [reduce_integer_sum(b, half) for half in integers]
        total = b.add(*sums)
        for place, number in ((GROUP_SUM, total), (GROUP_SUMS, sums[0]), (GROUP_SUMS + 4, sums[1])):
            store(b, b.fmul(b.sitofp(number, f32), b.bitcast(bits, f32)), at(b, target, place))
        store(b, offset, at(b, target, GROUP_OFFSET))
        for width, numbers in ((4, [total]), (8, [total]), (6, sums)):
            for place, number in enumerate(numbers):
                start = b.sub(offset, b.mul(number, ir.Constant(i32, CENTRES[width])))
                store(b, start, at(b, target, GROUP_STARTS[width] + 4 * place))
        return []

    loop(b, b.sdiv(vectors, int64(2)), [], group)


def _write_int8(b: ir.IRBuilder, values: ValueAt, k: ir.Value, out: ir.Value, scratch: ir.Value) -> None:
    vectors = b.sdiv(k, int64(LANES))
    row = at(b, out, HEADER_BYTES)

    def measure(index: ir.Value, found: Values) -> Values:
        value = values(index)
        store(b, value, scaled(b, scratch, index, 4 * LANES))
        size = absolute(b, value)
        return [maximum(b, found[0], size), b.fadd(found[1], size)]

    found = loop(b, vectors, [constant(f32, SMALLEST_MAXIMUM), constant(f32, 0.0)], measure)
    largest = reduce_maximum(b, found[0])
    means = b.fdiv(float32(float(WIDE_MEANS)), b.sitofp(k, f32))
    bound = b.fmul(reduce_sum(b, found[1]), means)

    def scales(limit: ir.Value) -> ir.Value:
        store(b, b.fdiv(limit, float32(127.0)), at(b, out, SCALE))
        return splat(b, b.fdiv(float32(127.0), limit))

    split, plain, end = (b.append_basic_block(name) for name in ("split", "plain", "quantised"))
    b.cbranch(b.fcmp_ordered("<", bound, largest), split, plain)

    b.position_at_end(split)
    far, near = b.append_basic_block("far"), b.append_basic_block("near")
    before = b.block
    b.cbranch(b.fcmp_ordered(">", largest, b.fmul(bound, float32(FAR))), far, near)
    b.position_at_end(far)
    trimmed = _trimmed_bound(b, vectors, scratch, bound, means)
    after = b.block
    b.branch(near)
    b.position_at_end(near)
    bound = either(b, bound, before, trimmed, after)
    least = b.fmul(largest, float32(1 / WIDEST))
    bound = b.select(b.fcmp_ordered(">", bound, least), bound, least)
    most = b.udiv(k, int64(4 * QUADS_A_WIDE_ONE))
    most = b.trunc(b.select(b.icmp_signed("<", most, int64(MOST_WIDE_QUADS)), most, int64(MOST_WIDE_QUADS)), i32)
    wide, total = _quantise_wide(b, vectors, row, scratch, scales(bound), b.add(row, k), most)
    store(b, wide, at(b, out, WIDE_QUADS))
    store(b, b.shl(total, ir.Constant(i32, 7)), at(b, out, CORRECTION))
    b.cbranch(b.icmp_signed(">", wide, most), plain, end)

    b.position_at_end(plain)
    inverse = scales(largest)

    def quantise(index: ir.Value, sums: Values) -> Values:
        integer = _integers(b, vector_at(b, scratch, index), inverse)
        store(b, b.trunc(integer, BYTES), scaled(b, row, index, LANES))
        return [b.add(sums[0], integer)]

    total = reduce_integer_sum(b, loop(b, vectors, [constant(i32, 0)], quantise)[0])
    store(b, ir.Constant(i32, 0), at(b, out, WIDE_QUADS))
    store(b, b.shl(total, ir.Constant(i32, 7)), at(b, out, CORRECTION))
    b.branch(end)
    b.position_at_end(end)


def _trimmed_bound(b: ir.IRBuilder, vectors: ir.Value, scratch: ir.Value, bound: ir.Value, means: ir.Value) -> ir.Value:
    """The bound from only the values within `bound`."""
    bounds = splat(b, bound)

    def add(index: ir.Value, sums: Values) -> Values:
        size = absolute(b, vector_at(b, scratch, index))
        return [b.fadd(sums[0], b.select(b.fcmp_ordered("<=", size, bounds), size, constant(f32, 0.0)))]

    return b.fmul(reduce_sum(b, loop(b, vectors, [constant(f32, 0.0)], add)[0]), means)


def _quantise_wide(
    b: ir.IRBuilder,
    vectors: ir.Value,
    row: ir.Value,
    scratch: ir.Value,
    inverse: ir.Value,
    entries: ir.Value,
    most: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """Write low bytes, at most `most` entries and a spare one. Gives the number of wide quads and the integers' sum."""

    def quantise(index: ir.Value, carried: Values) -> Values:
        count, sums = carried
        integer = _integers(b, vector_at(b, scratch, index), inverse)
        wide = b.icmp_unsigned(">", b.add(integer, constant(i32, 127)), constant(i32, 254))
        before, some, done = b.block, b.append_basic_block("some"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("!=", b.bitcast(wide, i16), ir.Constant(i16, 0)), some, done)
        b.position_at_end(some)
        nearest = b.ashr(b.add(integer, constant(i32, 1 << (WIDE_SHIFT - 1))), constant(i32, WIDE_SHIFT))
        high = b.select(wide, nearest, constant(i32, 0))
        rest = b.sub(integer, b.shl(high, constant(i32, WIDE_SHIFT)))
        packed = b.bitcast(b.trunc(high, BYTES), vector(i32, LANES // 4))
        more = count
        for place in range(LANES // 4):  # an entry is always written, and overwritten if its quad is not wide
            quad = b.extract_element(packed, ir.Constant(i32, place))
            room = b.select(b.icmp_signed("<", more, most), more, most)
            entry = b.add(entries, b.mul(b.sext(room, index.type), int64(ENTRY_BYTES)))
            number = b.add(b.mul(index, int64(LANES // 4)), int64(place))
            store(b, b.trunc(number, i32), entry)
            store(b, quad, at(b, entry, 4))
            more = b.add(more, b.zext(b.icmp_signed("!=", quad, ir.Constant(i32, 0)), i32))
        after = b.block
        b.branch(done)
        b.position_at_end(done)
        low, following = either(b, integer, before, rest, after), either(b, count, before, more, after)
        store(b, b.trunc(low, BYTES), scaled(b, row, index, LANES))
        return [following, b.add(sums, integer)]

    count, sums = loop(b, vectors, [ir.Constant(i32, 0), constant(i32, 0)], quantise)
    return count, reduce_integer_sum(b, sums)
