"""Adds a bias to one row, normalises it, and writes the result as GEMM activations.

The row itself becomes either the sum (a norm before a block: the residual stream goes on) or the normalised values (a
norm after a block: they are the residual stream). Its padding is zeros, and does not count.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import fma, reciprocal, reduce_sum, square_root
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, VECTOR_BYTES, constant, f32, int64, scaled, splat, store, vector_at


def _layer_norm_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    x, bias, weight, shift, keep, k, out, scratch, size, eps = arguments
    vectors = b.sdiv(k, int64(LANES))

    def add(index: ir.Value, sums: Values) -> Values:
        value = b.fadd(vector_at(b, x, index), vector_at(b, bias, index))
        store(b, value, scaled(b, x, index, VECTOR_BYTES))
        return [b.fadd(sums[0], value)]

    mean = b.fdiv(reduce_sum(b, loop(b, vectors, [constant(f32, 0.0)], add)[0]), size)
    means = splat(b, mean)

    def square(index: ir.Value, sums: Values) -> Values:
        centred = b.fsub(vector_at(b, x, index), means)
        return [fma(b, centred, centred, sums[0])]

    squares = reduce_sum(b, loop(b, vectors, [constant(f32, 0.0)], square)[0])
    padding = b.fsub(b.sitofp(k, f32), size)  # each of these zeros added the mean's square
    squares = b.fsub(squares, b.fmul(padding, b.fmul(mean, mean)))
    inverse = splat(b, reciprocal(b, square_root(b, b.fadd(b.fdiv(squares, size), eps))))
    normalised_stays = b.icmp_signed("!=", keep, int64(0))

    def values(index: ir.Value) -> ir.Value:
        value = vector_at(b, x, index)
        scaled_up = b.fmul(b.fmul(b.fsub(value, means), inverse), vector_at(b, weight, index))
        normalised = b.fadd(scaled_up, vector_at(b, shift, index))
        store(b, b.select(normalised_stays, normalised, value), scaled(b, x, index, VECTOR_BYTES))
        return normalised

    write_row(b, weight_format, values, k, out, scratch)


# layer_norm_row(tag, x, bias, weight, shift, keep the normalised row?, k, out, scratch, size, eps): addresses of padded
# float32 rows, the padded k (a multiple of 32), and as float32 the number of values that count and epsilon
layer_norm_row = written_kernel("layer_norm_row", "iiiiiiiiff", _layer_norm_row)
