"""RMSNorm and LayerNorm of one row, as LLVM IR. The row's padding is zeros and does not count.

    y = (x - mean) / sqrt(mean((x - mean)**2) + eps) * gain + bias

RMSNorm is the same with 0 for the mean, so whether a norm is centred is a run-time value.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import fma, reciprocal, reduce_sum, square_root
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, constant, f32, int64, scaled, splat, store, vector_at


def mean_and_inverse(
    b: ir.IRBuilder,
    x: ir.Value,
    vectors: ir.Value,
    size: ir.Value,
    eps: ir.Value,
    centred: ir.Value,
    bias: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    """The mean (0 unless `centred`) and 1 / standard deviation, in a fixed order.

    Of the 16 * vectors values at x plus those at bias, `size` count and the others are zeros.
    """

    def value(index: ir.Value) -> ir.Value:
        found = vector_at(b, x, index)
        return found if bias is None else b.fadd(found, vector_at(b, bias, index))

    zero = [constant(f32, 0.0)]
    summed = b.select(b.icmp_signed("!=", centred, int64(0)), vectors, int64(0))
    total = reduce_sum(b, loop(b, summed, zero, lambda index, sums: [b.fadd(sums[0], value(index))])[0])
    mean = b.fdiv(total, size)
    means = splat(b, mean)

    def body(index: ir.Value, sums: Values) -> Values:
        distance = b.fsub(value(index), means)
        return [fma(b, distance, distance, sums[0])]

    squares = reduce_sum(b, loop(b, vectors, zero, body)[0])
    padding = b.fsub(b.sitofp(b.mul(vectors, int64(LANES)), f32), size)  # each of it added mean**2
    squares = b.fsub(squares, b.fmul(padding, b.fmul(mean, mean)))
    return mean, reciprocal(b, square_root(b, b.fadd(b.fdiv(squares, size), eps)))


def _norm_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    x, gain, bias, k, out, scratch, centred, size, eps = arguments
    mean, inverse = mean_and_inverse(b, x, b.sdiv(k, int64(LANES)), size, eps, centred)
    means, inverses = splat(b, mean), splat(b, inverse)

    def values(index: ir.Value) -> ir.Value:
        value = b.fmul(b.fsub(vector_at(b, x, index), means), inverses)
        return fma(b, value, vector_at(b, gain, index), vector_at(b, bias, index))

    write_row(b, weight_format, values, k, out, scratch)


# norm_row(tag, x, gain, bias, k, out, scratch, centred?, size, eps): addresses, the padded k (a multiple of 32), and as
# float32 the number of values that count and epsilon; written as GEMM activations
norm_row = written_kernel("norm_row", "iiiiiiiff", _norm_row)


def _add_norm_row(b: ir.IRBuilder, _: str, *arguments: ir.Value) -> None:
    x, bias, gain, k, out, centred, size, eps = arguments
    vectors = b.sdiv(k, int64(LANES))
    wanted = b.icmp_signed("!=", gain, int64(0))
    gains = b.select(wanted, gain, bias)  # an address that may be read
    mean, inverse = mean_and_inverse(b, x, b.select(wanted, vectors, int64(0)), size, eps, centred, bias)
    means, inverses = splat(b, mean), splat(b, inverse)

    def body(index: ir.Value, _: Values) -> Values:
        value = b.fadd(vector_at(b, x, index), vector_at(b, bias, index))
        normalised = b.fmul(b.fmul(b.fsub(value, means), inverses), vector_at(b, gains, index))
        before = vector_at(b, out, index)
        store(b, b.fadd(before, b.select(wanted, normalised, value)), scaled(b, out, index, 4 * LANES))
        return []

    loop(b, vectors, [], body)


# add_norm_row(tag, x, bias, gain, k, out, centred?, size, eps): out += norm(x + bias), or x + bias if gain is 0;
# addresses of float32 rows, the rest as for norm_row
add_norm_row = written_kernel("add_norm_row", "iiiiiiff", _add_norm_row)
