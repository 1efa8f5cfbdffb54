"""One row of values, however computed, written as the activations of the next GEMM.

float32: as it is. bfloat16: rounded to nearest even. int8: quantised with the row's own scale (reference.py), which
needs the whole row first, so the values pass through a scratch row that stays in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..simd.arithmetic import absolute, maximum, nearest_integer, reduce_integer_sum, reduce_maximum, round_bfloat16
from ..simd.functions import Values, loop
from ..simd.lanes import LANES, VF, VI, constant, f32, float32, i8, i32, int64, load, scaled, splat, store, vector
from .reference import SMALLEST_MAXIMUM

ValueAt = Callable[[ir.Value], ir.Value]  # vector index -> 16 float32 values


def write_row(
    b: ir.IRBuilder,
    weight_format: str,
    values: ValueAt,
    k: ir.Value,
    out: ir.Value,
    scale: ir.Value,
    correction: ir.Value,
    scratch: ir.Value,
) -> None:
    """Write the k values (a multiple of 16) to `out`, and for int8 the float32 scale and the int32 correction."""
    vectors = b.sdiv(k, int64(LANES))
    if weight_format == "int8":
        _write_int8(b, values, vectors, out, scale, correction, scratch)
        return

    def body(index: ir.Value, _: Values) -> Values:
        value = values(index)
        if weight_format == "bfloat16":
            store(b, round_bfloat16(b, value), scaled(b, out, index, 2 * LANES))
        else:
            store(b, value, scaled(b, out, index, 4 * LANES))
        return []

    loop(b, vectors, [], body)


def _write_int8(
    b: ir.IRBuilder,
    values: ValueAt,
    vectors: ir.Value,
    out: ir.Value,
    scale: ir.Value,
    correction: ir.Value,
    scratch: ir.Value,
) -> None:
    def measure(index: ir.Value, found: Values) -> Values:
        value = values(index)
        store(b, value, scaled(b, scratch, index, 4 * LANES))
        return [maximum(b, found[0], absolute(b, value))]

    largest = reduce_maximum(b, loop(b, vectors, [constant(f32, SMALLEST_MAXIMUM)], measure)[0])
    inverse = splat(b, b.fdiv(float32(127.0), largest))

    def quantise(index: ir.Value, sums: Values) -> Values:
        value = load(b, scaled(b, scratch, index, 4 * LANES), VF)
        integer = b.fptosi(nearest_integer(b, b.fmul(value, inverse)), VI)
        store(b, b.trunc(integer, vector(i8, LANES)), scaled(b, out, index, LANES))
        return [b.add(sums[0], integer)]

    total = reduce_integer_sum(b, loop(b, vectors, [constant(i32, 0)], quantise)[0])
    store(b, b.fdiv(largest, float32(127.0)), scale)
    store(b, b.shl(total, ir.Constant(i32, 7)), correction)
