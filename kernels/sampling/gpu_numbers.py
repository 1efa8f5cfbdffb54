"""numbers.py for Triton: the same operations in the same order on blocks, so the same bits.

That holds where nothing is fused: the launcher says `enable_fp_fusion=False`, and division is `div_rn`. Addition and
multiplication are then IEEE's on the GPU as on the CPU, and the random words are integers. Tests compare bit for bit.

A value and its token travel together as one int64, `ranked`: the larger value first, then the smaller token. So every
maximum over tokens is a plain integer maximum, and no result depends on how a row was divided over programs.
"""

from ..gpu.language import jit, tl
from . import numbers

ONE = tl.constexpr(numbers.ONE)
LOWEST = tl.constexpr(float(numbers.LOWEST))
GREEDY_BELOW = tl.constexpr(float(numbers.GREEDY_BELOW))
LOWEST_RANK = tl.constexpr(-(2**63))
NEGATIVE_INFINITY = tl.constexpr(float("-inf"))
NEGATIVE_INFINITY_KEY = tl.constexpr(-0x7F800000)  # order_key of it

_LOG2_E, _ROUND = tl.constexpr(float(numbers._LOG2_E)), tl.constexpr(float(numbers._ROUND))
_ROUND_BITS = tl.constexpr(int(numbers._ROUND_BITS))
_LN2_HIGH, _LN2_LOW = tl.constexpr(float(numbers._LN2_HIGH)), tl.constexpr(float(numbers._LN2_LOW))
_E2, _E3, _E4 = (tl.constexpr(float(value)) for value in (numbers._E2, numbers._E3, numbers._E4))
_E5, _E6, _E7 = (tl.constexpr(float(value)) for value in (numbers._E5, numbers._E6, numbers._E7))
_SQRT_HALF_BITS, _FRACTION = tl.constexpr(int(numbers._SQRT_HALF_BITS)), tl.constexpr(int(numbers._FRACTION))
_L0, _L1, _L2 = (tl.constexpr(float(value)) for value in (numbers._L0, numbers._L1, numbers._L2))
_L3, _L4, _L5 = (tl.constexpr(float(value)) for value in (numbers._L3, numbers._L4, numbers._L5))
_L6, _L7, _L8 = (tl.constexpr(float(value)) for value in (numbers._L6, numbers._L7, numbers._L8))
_WORD_UNIT, _HALF_WORD = tl.constexpr(float(numbers._WORD_UNIT)), tl.constexpr(float(numbers._HALF_WORD))
_MAGNITUDE, _LAST_TOKEN = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7FFFFFFF)
_LOW_WORD = tl.constexpr(0xFFFFFFFF)


@jit
def weight(d):
    """exp(d) in units of 2^-30, int32; d <= 0, also -inf."""
    d = tl.maximum(d, LOWEST)
    shifted = d * _LOG2_E + _ROUND
    whole = shifted - _ROUND
    r = d - whole * _LN2_HIGH
    r = r - whole * _LN2_LOW
    p = ((((r * _E7 + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    p = p * (r * r) + r + 1.0
    exponent = shifted.to(tl.int32, bitcast=True) - _ROUND_BITS
    power = (p.to(tl.int32, bitcast=True) + (exponent << 23)).to(tl.float32, bitcast=True)
    return (power * (ONE * 1.0) + 0.5).to(tl.int32)


@jit
def logarithm(x):
    """Natural logarithm of positive normal float32."""
    bits = x.to(tl.int32, bitcast=True) - _SQRT_HALF_BITS
    n = (bits >> 23).to(tl.float32)
    f = ((bits & _FRACTION) + _SQRT_HALF_BITS).to(tl.float32, bitcast=True) - 1.0
    p = ((((((((f * _L0 + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5) * f + _L6) * f + _L7) * f + _L8) * f
    square = f * f
    p = p * square + n * _LN2_LOW
    return p - 0.5 * square + f + n * _LN2_HIGH


@jit
def gumbel(word):
    """A standard Gumbel number from uint32."""
    w = word.to(tl.float32) * _WORD_UNIT + _HALF_WORD
    u = 1.0 - w
    return -logarithm((w - (1.0 - u)) - logarithm(u))


@jit
def order_key(value):
    """float32 -> int32 of the same order, -0 equal to +0, NaN beyond the infinities."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & _MAGNITUDE))


@jit
def ranked(value, token):
    return (order_key(value).to(tl.int64) << 32) | (token ^ _LAST_TOKEN).to(tl.int64)


@jit
def token_of(rank):
    return ((rank & _LOW_WORD) ^ _LAST_TOKEN).to(tl.int32)


@jit
def key_of(rank):
    return (rank >> 32).to(tl.int32)


@jit
def value_of(rank):
    key = key_of(rank)
    magnitude = tl.abs(key).to(tl.float32, bitcast=True)
    return tl.where(key >= 0, magnitude, -magnitude)
