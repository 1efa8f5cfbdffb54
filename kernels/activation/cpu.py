"""One row through an activation, written as GEMM activations: f(x + bias) * (y + y bias).

An MLP without a gate passes a row of ones for y, and zeros for its bias: two instructions on 16 values, of about 25.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.activations import ACTIVATION_NUMBERS, ACTIVATIONS
from ..simd.functions import written_kernel
from ..simd.lanes import int64, vector_at


def _activation_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    kind, x, bias, y, y_bias, k, out, scratch = arguments
    end = b.append_basic_block("end")
    switch = b.switch(kind, end)
    for name, activation in ACTIVATIONS.items():
        block = b.append_basic_block(name)
        switch.add_case(int64(ACTIVATION_NUMBERS[name]), block)
        b.position_at_end(block)

        def values(index: ir.Value, activation: object = activation) -> ir.Value:
            assert callable(activation)
            value = activation(b, b.fadd(vector_at(b, x, index), vector_at(b, bias, index)))
            return b.fmul(value, b.fadd(vector_at(b, y, index), vector_at(b, y_bias, index)))

        write_row(b, weight_format, values, k, out, scratch)
        b.branch(end)
    b.position_at_end(end)


# activation_row(tag, kind, x, bias, y, y bias, k, out, scratch): the kind is one of ACTIVATION_NUMBERS; addresses of
# float32 rows; k is a multiple of 32
activation_row = written_kernel("activation_row", "iiiiiiii", _activation_row)
