"""RMS norm of one row, written as GEMM activations. The row's padding is zeros and does not count."""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import fma, reciprocal, reduce_sum, square_root
from ..simd.functions import Values, kernel, loop, new_function
from ..simd.lanes import LANES, VF, constant, f32, int64, load, scaled, splat


def inverse_root_mean_square(
    b: ir.IRBuilder, x: ir.Value, vectors: ir.Value, size: ir.Value, eps: ir.Value, bias: ir.Value | None = None
) -> ir.Value:
    """1 / sqrt(sum(x**2) / size + eps), with x the 16 * vectors values at x plus those at bias; in a fixed order."""

    def body(index: ir.Value, sums: Values) -> Values:
        value = load(b, scaled(b, x, index, 4 * LANES), VF)
        if bias is not None:
            value = b.fadd(value, load(b, scaled(b, bias, index, 4 * LANES), VF))
        return [fma(b, value, value, sums[0])]

    total = reduce_sum(b, loop(b, vectors, [constant(f32, 0.0)], body)[0])
    return reciprocal(b, square_root(b, b.fadd(b.fdiv(total, size), eps)))


def _emit(module: ir.Module, weight_format: str) -> ir.Function:
    name = f"triolet_rms_norm_row_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiiiiff")
    x, weight, k, out, scratch, size, eps = function.args
    inverse = splat(b, inverse_root_mean_square(b, x, b.sdiv(k, int64(LANES)), size, eps))

    def values(index: ir.Value) -> ir.Value:
        value = b.fmul(load(b, scaled(b, x, index, 4 * LANES), VF), inverse)
        return b.fmul(value, load(b, scaled(b, weight, index, 4 * LANES), VF))

    write_row(b, weight_format, values, k, out, scratch)
    b.ret_void()
    return function


# rms_norm_row(tag, x, weight, k, out, scratch, size, eps): addresses, the padded k (a multiple of
# 32), and as float32 the number of values that count and epsilon
rms_norm_row = kernel("iiiiiff", _emit)
