"""Activation functions on 16 lanes, by the names of the specs; kernels/activation/reference.py has the definitions.

Which one is a run-time value. SiLU and GELU's tanh approximation are both x * sigmoid(x * (linear + cubic * x**2)), so
they share their instructions; the others are branches, which all rows of a model take alike.
"""

from __future__ import annotations

import math

from llvmlite import ir

from .arithmetic import absolute, exp2, fma, maximum
from .lanes import VF, constant, f32, float32, int64, splat

NUMBERS: dict[str, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "relu2": 4}  # as compiled code names them
# arXiv 1606.08415, section 2: 1 + tanh(y) = 2 * sigmoid(2 * y)
_TANH_LINEAR = 2 * math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715 * _TANH_LINEAR
# erf within 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26
_ERF_P = 0.3275911
_ERF_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


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


def _sigmoid_gated(b: ir.IRBuilder, x: ir.Value, number: ir.Value) -> ir.Value:
    is_gelu = b.icmp_signed("==", number, int64(NUMBERS["gelu_tanh"]))
    linear = splat(b, b.select(is_gelu, float32(_TANH_LINEAR), float32(1.0)))
    cubic = splat(b, b.select(is_gelu, float32(_TANH_CUBIC), float32(0.0)))
    slope = fma(b, b.fmul(x, cubic), x, linear)  # in this order 0 * x**2 is 0 for the largest x
    exponential = exp2(b, b.fmul(b.fmul(x, slope), constant(f32, -math.log2(math.e))))
    return b.fdiv(x, b.fadd(constant(f32, 1.0), exponential))


def _gelu(b: ir.IRBuilder, x: ir.Value, _: ir.Value) -> ir.Value:
    """x / 2 * (1 + erf(x / sqrt(2))). With t = 1 / (1 + p |z|), 1 - erf |z| is t's polynomial times exp(-z**2)."""
    z = b.fmul(absolute(b, x), constant(f32, math.sqrt(0.5)))
    t = b.fdiv(constant(f32, 1.0), fma(b, z, constant(f32, _ERF_P), constant(f32, 1.0)))
    value = constant(f32, _ERF_TERMS[-1])
    for term in reversed(_ERF_TERMS[:-1]):
        value = fma(b, value, t, constant(f32, term))
    tail = b.fmul(b.fmul(value, t), exp2(b, b.fmul(b.fmul(z, z), constant(f32, -math.log2(math.e)))))
    tail = b.fmul(b.fmul(tail, x), constant(f32, 0.5))  # x / 2 * (1 - erf |z|)
    negative = b.fcmp_ordered("<", x, constant(f32, 0.0))
    return b.select(negative, tail, b.fsub(x, tail))


def _relu(b: ir.IRBuilder, x: ir.Value, _: ir.Value) -> ir.Value:
    return maximum(b, x, constant(f32, 0.0))


def _relu2(b: ir.IRBuilder, x: ir.Value, number: ir.Value) -> ir.Value:
    positive = _relu(b, x, number)
    return b.fmul(positive, positive)
