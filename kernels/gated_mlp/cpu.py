"""The middle of an MLP: activation(gate) * up of one row, written as GEMM activations.

Which activation is a run-time value. SiLU and GELU's tanh approximation are both
x * sigmoid(x * (linear + cubic * x**2)), so they share their instructions; the others are branches, which all rows of a
model take alike.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import absolute, exp2, fma, maximum, tanh_capped
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, VF, constant, f32, float32, int64, scaled, splat, store, vector_at

# the kernel's number of each activation
NUMBERS: dict[str, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "relu2": 4}
GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR
# erf by Abramowitz and Stegun, 7.1.26: within 1.5e-7
ERF_SLOPE = 0.3275911
ERF_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _sigmoid_gated(b: ir.IRBuilder, x: ir.Value, number: ir.Value) -> ir.Value:
    is_gelu = b.icmp_signed("==", number, int64(1))
    linear = splat(b, b.select(is_gelu, float32(GELU_LINEAR), float32(1.0)))
    cubic = splat(b, b.select(is_gelu, float32(GELU_CUBIC), float32(0.0)))
    slope = fma(b, b.fmul(x, cubic), x, linear)  # in this order 0 * x**2 is 0 for the largest x
    exponential = exp2(b, b.fmul(b.fmul(x, slope), constant(f32, -math.log2(math.e))))
    return b.fdiv(x, b.fadd(constant(f32, 1.0), exponential))


def _gelu(b: ir.IRBuilder, x: ir.Value, _: ir.Value) -> ir.Value:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    size = absolute(b, b.fmul(x, constant(f32, math.sqrt(0.5))))
    t = b.fdiv(constant(f32, 1.0), fma(b, size, constant(f32, ERF_SLOPE), constant(f32, 1.0)))
    value = constant(f32, ERF_TERMS[-1])
    for term in reversed(ERF_TERMS[:-1]):
        value = fma(b, value, t, constant(f32, term))
    tail = exp2(b, b.fmul(b.fmul(size, size), constant(f32, -math.log2(math.e))))
    erf = b.fsub(constant(f32, 1.0), b.fmul(b.fmul(value, t), tail))
    erf = b.select(b.fcmp_ordered("<", x, constant(f32, 0.0)), b.fneg(erf), erf)
    return b.fmul(b.fmul(x, constant(f32, 0.5)), b.fadd(constant(f32, 1.0), erf))


def _relu(b: ir.IRBuilder, x: ir.Value, _: ir.Value) -> ir.Value:
    return maximum(b, x, constant(f32, 0.0))


def _relu2(b: ir.IRBuilder, x: ir.Value, number: ir.Value) -> ir.Value:
    positive = _relu(b, x, number)
    return b.fmul(positive, positive)


def activated(b: ir.IRBuilder, x: ir.Value, number: ir.Value) -> ir.Value:
    """The activation of 16 values; `number` is of NUMBERS."""
    blocks = [b.append_basic_block(name) for name in ("sigmoid", "gelu", "relu", "relu2")]
    end = b.append_basic_block("activated")
    switch = b.switch(number, blocks[0])
    for block in blocks[1:]:
        switch.add_case(int64(NUMBERS[block.name.split(".")[0]]), block)
    results: list[tuple[ir.Value, ir.Block]] = []
    for block, emit in zip(blocks, (_sigmoid_gated, _gelu, _relu, _relu2), strict=True):
        b.position_at_end(block)
        results.append((emit(b, x, number), b.block))
        b.branch(end)
    b.position_at_end(end)
    phi = b.phi(VF)
    for value, origin in results:
        phi.add_incoming(value, origin)
    return phi


def _gated_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    gates, ups, gate_bias, up_bias, k, out, scratch, number = arguments

    def values(index: ir.Value) -> ir.Value:
        gate, up = (
            b.fadd(vector_at(b, row, index), vector_at(b, bias, index))
            for row, bias in ((gates, gate_bias), (ups, up_bias))
        )
        return b.fmul(activated(b, gate, number), up)

    write_row(b, weight_format, values, k, out, scratch)


def _cap_row(b: ir.IRBuilder, _: str, x: ir.Value, size: ir.Value, cap: ir.Value) -> None:
    caps = splat(b, cap)

    def body(index: ir.Value, _: Values) -> Values:
        store(b, tanh_capped(b, vector_at(b, x, index), caps), scaled(b, x, index, 4 * LANES))
        return []

    loop(b, b.sdiv(size, int64(LANES)), [], body)


# gated_row(tag, gates, ups, gate bias, up bias, k, out, scratch, number of the activation): addresses of float32
# rows, and k as a multiple of 32
gated_row = written_kernel("gated_row", "iiiiiiii", _gated_row)
# cap_row(tag, x, size, cap): x = cap * tanh(x / cap), in place; an address and a multiple of 16
cap_row = written_kernel("cap_row", "iif", _cap_row)
