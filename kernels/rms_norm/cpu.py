"""RMS norm of one row, written as GEMM activations. The row's padding is zeros and does not count."""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import fma, reciprocal, reduce_sum, square_root
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, constant, f32, int64, splat, vector_at


def inverse_root_mean_square(
    b: ir.IRBuilder, x: ir.Value, vectors: ir.Value, size: ir.Value, eps: ir.Value, bias: ir.Value | None = None
) -> ir.Value:
    """1 / sqrt(sum(x**2) / size + eps), with x the 16 * vectors values at x plus those at bias; in a fixed order."""

    def body(index: ir.Value, sums: Values) -> Values:
        value = vector_at(b, x, index)
        if bias is not None:
            value = b.fadd(value, vector_at(b, bias, index))
        return [fma(b, value, value, sums[0])]

    total = reduce_sum(b, loop(b, vectors, [constant(f32, 0.0)], body)[0])
    return reciprocal(b, square_root(b, b.fadd(b.fdiv(total, size), eps)))


def _norm_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    x, weight, k, out, scratch, size, eps = arguments
    inverse = splat(b, inverse_root_mean_square(b, x, b.sdiv(k, int64(LANES)), size, eps))

    def values(index: ir.Value) -> ir.Value:
        value = b.fmul(vector_at(b, x, index), inverse)
        return b.fmul(value, vector_at(b, weight, index))

    write_row(b, weight_format, values, k, out, scratch)


# rms_norm_row(tag, x, weight, k, out, scratch, size, eps): addresses, the padded k (a multiple of
# 32), and as float32 the number of values that count and epsilon
rms_norm_row = written_kernel("rms_norm_row", "iiiiiff", _norm_row)
