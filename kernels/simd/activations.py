"""Activation functions on 16 lanes, by the names of the specs; kernels/activation/reference.py has the definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from .arithmetic import absolute, exp2, fma, maximum, silu
from .lanes import constant, f32

# erf within 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26
_ERF_P = 0.3275911
_ERF_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
# 2 sqrt(2 / pi) log2(e): 1 + tanh(y) = 2 / (1 + exp(-2 y)), and the exponential is to base 2
_TANH_FACTOR = -2 * math.sqrt(2 / math.pi) * math.log2(math.e)
_TANH_CUBE = 0.044715


def gelu(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
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


def gelu_tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))."""
    inner = fma(b, b.fmul(b.fmul(x, x), constant(f32, _TANH_CUBE)), x, x)
    return b.fdiv(x, b.fadd(constant(f32, 1.0), exp2(b, b.fmul(inner, constant(f32, _TANH_FACTOR)))))


def relu(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return maximum(b, x, constant(f32, 0.0))


ACTIVATIONS: dict[str, Callable[[ir.IRBuilder, ir.Value], ir.Value]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
}
ACTIVATION_NUMBERS = {name: number for number, name in enumerate(ACTIVATIONS)}  # as compiled code names them
