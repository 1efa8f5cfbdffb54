"""Floating point on 16 lanes: fused multiply-add, maximum, reductions, exp2, SiLU, soft caps, bfloat16 rounding."""

from __future__ import annotations

import math

from llvmlite import ir

from .lanes import LANES, VF, VI, constant, declare, f32, float32, i16, i32, vector
from .target import has

# exp2(r) on [-1/2, 1/2] as its Taylor series: the first omitted term, ln(2)^7 / 7! * 2^-7, is 1.2e-7, one float32 step
_EXP2_TERMS = [math.log(2.0) ** power / math.factorial(power) for power in range(7)]

_HALF = ir.HalfType()


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once if the CPU can (without the feature LLVM would call libm for every lane)."""
    if not (has("fma") or has("neon")):
        return b.fadd(b.fmul(x, y), z)
    return b.call(declare(b.module, "llvm.fma.v16f32", VF, [VF] * 3), [x, y, z])


def maximum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def minimum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Of NaN, as in `maximum`, the second."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


def reduce_maximum(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    function = declare(b.module, "llvm.vector.reduce.fmax.v16f32", f32, [VF])
    return b.call(function, [x], fastmath=("nnan", "nsz"))


def reduce_sum(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The sum of the lanes, always by the same tree of pairs."""
    width = LANES
    while width > 1:
        width //= 2
        low, high = (ir.Constant(vector(i32, width), list(range(start, start + width))) for start in (0, width))
        x = b.fadd(b.shuffle_vector(x, x, low), b.shuffle_vector(x, x, high))
    return b.extract_element(x, ir.Constant(i32, 0))


def reduce_integer_sum(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.call(declare(b.module, "llvm.vector.reduce.add.v16i32", i32, [VI]), [x])


def absolute(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.call(declare(b.module, "llvm.fabs.v16f32", VF, [VF]), [x])


def square_root(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.call(declare(b.module, "llvm.sqrt.f32", f32, [f32]), [x])


def nearest_integer(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Round to the nearest integer, ties to even, for |x| < 2**22: adding 1.5 * 2**23 leaves no fraction bits."""
    shift = constant(f32, 12582912.0)
    return b.fsub(b.fadd(x, shift), shift)


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2**x within 3e-7 relative; x is clamped to [-126, 127], so the result is never zero, denormal or infinite."""
    low, high = constant(f32, -126.0), constant(f32, 127.0)
    x = maximum(b, x, low)
    x = b.select(b.fcmp_ordered("<", x, high), x, high)
    whole = nearest_integer(b, x)
    rest = b.fsub(x, whole)
    value = constant(f32, _EXP2_TERMS[-1])
    for term in reversed(_EXP2_TERMS[:-1]):
        value = fma(b, value, rest, constant(f32, term))
    power = b.shl(b.add(b.fptosi(whole, VI), constant(i32, 127)), constant(i32, 23))
    return b.fmul(value, b.bitcast(power, VF))


def silu(b: ir.IRBuilder, x: ir.Value, slope: ir.Value | None = None) -> ir.Value:
    """x / (1 + exp(-slope * x)); the slope is 1 without one."""
    exponent = b.fmul(x, constant(f32, -math.log2(math.e)))
    exponential = exp2(b, exponent if slope is None else b.fmul(exponent, slope))
    return b.fdiv(x, b.fadd(constant(f32, 1.0), exponential))


def tanh_capped(b: ir.IRBuilder, x: ir.Value, cap: ir.Value) -> ir.Value:
    """cap * tanh(x / cap) on 16 lanes, within 2e-7 * cap. Beyond its largest argument, tanh is 1 in float32."""
    exponent = b.fmul(b.fdiv(x, cap), constant(f32, 2 * math.log2(math.e)))
    exponential = exp2(b, exponent)
    one = constant(f32, 1.0)
    return b.fmul(cap, b.fdiv(b.fsub(exponential, one), b.fadd(exponential, one)))


def reciprocal(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.fdiv(float32(1.0), x)


def round_bfloat16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The bfloat16 bits of 16 lanes, nearest even, as 16-bit integers (integer arithmetic: the same on every CPU)."""
    bits = b.bitcast(x, VI)
    odd = b.and_(b.lshr(bits, constant(i32, 16)), constant(i32, 1))
    rounded = b.add(bits, b.add(odd, constant(i32, 0x7FFF)))
    return b.trunc(b.lshr(rounded, constant(i32, 16)), vector(i16, LANES))


def half_to_float(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """16 float16 as 16-bit integers to float32: exact, but infinities become 65536 and more on CPUs without F16C."""
    if has("f16c") or has("neon"):
        return b.fpext(b.bitcast(bits, vector(_HALF, LANES)), VF)
    wide = b.zext(bits, VI)
    # The same bits in a float32's place have an exponent that is 112 too small, subnormal numbers included.
    magnitude = b.bitcast(b.shl(b.and_(wide, constant(i32, 0x7FFF)), constant(i32, 13)), VF)
    sign = b.shl(b.and_(wide, constant(i32, 0x8000)), constant(i32, 16))
    return b.bitcast(b.or_(b.bitcast(b.fmul(magnitude, constant(f32, 2.0**112)), VI), sign), VF)
