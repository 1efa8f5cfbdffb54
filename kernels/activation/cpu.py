"""The middle of an MLP: f(x + bias) * (y + y bias) of one row, written as GEMM activations; and soft caps of logits.

An MLP without a gate passes a row of ones for y, and zeros for its bias: two instructions on 16 values, of about 25.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.activations import activated
from ..simd.arithmetic import tanh_capped
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, int64, scaled, splat, store, vector_at


def _activation_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    x, y, bias, y_bias, k, out, scratch, number = arguments

    def values(index: ir.Value) -> ir.Value:
        first, second = (
            b.fadd(vector_at(b, row, index), vector_at(b, added, index)) for row, added in ((x, bias), (y, y_bias))
        )
        return b.fmul(activated(b, first, number), second)

    write_row(b, weight_format, values, k, out, scratch)


def _cap_row(b: ir.IRBuilder, _: str, x: ir.Value, size: ir.Value, cap: ir.Value) -> None:
    caps = splat(b, cap)

    def body(index: ir.Value, _: Values) -> Values:
        store(b, tanh_capped(b, vector_at(b, x, index), caps), scaled(b, x, index, 4 * LANES))
        return []

    loop(b, b.sdiv(size, int64(LANES)), [], body)


# activation_row(tag, x, y, bias, y bias, k, out, scratch, number of the activation): addresses of float32 rows, k a
# multiple of 32; the number is of simd/activations.py
activation_row = written_kernel("activation_row", "iiiiiiii", _activation_row)
# cap_row(tag, x, size, cap): x = cap * tanh(x / cap), in place; an address and a multiple of 16
cap_row = written_kernel("cap_row", "iif", _cap_row)
