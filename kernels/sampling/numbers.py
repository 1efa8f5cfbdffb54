"""The arithmetic of sampling, exact to the bit everywhere: exp, log and random numbers from plain IEEE operations.

Each function is elementwise, and the same source runs on numpy arrays (the reference) and, compiled, on scalars. Hence
the casts, which stop numba from widening int32 to int64. Nothing here may be fused or reordered: no fast-math, and no
library exp or log, whose last bit differs between machines.

Probabilities are integers: `weight(d)` is exp(d) in units of 2^-30. Integer sums do not depend on the order of
addition, so thresholds from vectorised sums are exact. Less than 2^-31 of the most probable token counts as zero.
"""

from typing import Any

import numpy as np

ONE = 1 << 30  # the weight of the most probable token
MAX_GUMBEL = np.float32(23.0)  # gumbel(0) = 22.9: no random number is larger
RANDOM_BLOCK = 256  # tokens that share a run of 64 Philox counters, see `token_counter`

_ONE = np.float32(ONE)
_HALF = np.float32(0.5)
_UNIT = np.float32(1.0)

LOWEST = np.float32(-80.0)  # `weight` is 0 there and below; each caller clamps in the way that is fast for it
GREEDY_BELOW = np.float32(1e-5)  # temperatures below this are greedy: their inverse would overflow

_LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_ROUND_BITS = np.int32(0x4B400000)
_LN2_HIGH = np.float32(0.693359375)  # 9 bits, so that n * _LN2_HIGH is exact
_LN2_LOW = np.float32(-2.12194440e-4)
# (exp(r) - 1 - r) / r^2 on |r| <= ln 2 / 2: the coefficients of Cephes' expf
_E2, _E3, _E4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_E5, _E6, _E7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)

_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_FRACTION = np.int32(0x007FFFFF)
_MANTISSA_BITS = np.int32(23)
# (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) <= 1 + f < sqrt(2): the coefficients of Cephes' logf
_L0, _L1, _L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_L3, _L4, _L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_L6, _L7, _L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)

_WORD_UNIT = np.float32((1.0 - 2.0**-24) * 2.0**-32)  # the largest word gives 1 - 2^-24, never 1
_HALF_WORD = np.float32(2.0**-33)

PHILOX_M0, PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
PHILOX_W0, PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
PHILOX_ROUNDS = 10
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)

# Arguments and results are arrays or scalars of the named type: Any, because no stub describes a cast for both.


def weight(d: Any) -> Any:
    """round(exp(d) * 2^30) as int32, for float32 LOWEST <= d <= 0. The relative error of exp is below 2e-7."""
    shifted = d * _LOG2_E + _ROUND
    whole = shifted - _ROUND
    r = d - whole * _LN2_HIGH
    r = r - whole * _LN2_LOW
    p = ((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    p = p * (r * r) + r + _UNIT
    exponent = np.int32(np.float32(shifted).view(np.int32) - _ROUND_BITS)
    power = np.int32(np.float32(p).view(np.int32) + np.int32(exponent << _MANTISSA_BITS))
    return np.int32(np.int32(power).view(np.float32) * _ONE + _HALF)


def log(x: Any) -> Any:
    """Natural logarithm of a positive normal float32; error below 2e-7, relative or absolute, whichever is larger."""
    bits = np.int32(np.float32(x).view(np.int32) - _SQRT_HALF_BITS)
    n = np.float32(np.int32(bits >> _MANTISSA_BITS))
    mantissa = np.int32(np.int32(bits & _FRACTION) + _SQRT_HALF_BITS)
    f = np.int32(mantissa).view(np.float32) - _UNIT
    p = ((((((((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5) * f + _L6) * f + _L7) * f + _L8) * f
    square = f * f
    p = p * square + n * _LN2_LOW
    return p - _HALF * square + f + n * _LN2_HIGH


def gumbel(word: Any) -> Any:
    """A standard Gumbel number, -log(-log(1 - w)) with w = (word + 1/2) / 2^32, from 32 random bits (uint32).

    Large numbers come from small w, where float32 has its full resolution. The first term restores what u = 1 - w
    rounds away: log(u + e) = log u + e / u. If e is not 0, u is between 1/2 and 1 and the division is not needed.
    """
    w = np.float32(word) * _WORD_UNIT + _HALF_WORD
    u = _UNIT - w
    return -log((w - (_UNIT - u)) - log(u))


def philox(counter: Any, position: Any, seed: Any) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al., SC 2011): four random uint32 of a 128-bit counter under a 64-bit key.

    The counter's words are (counter, low word of position, high word of position, 0); the key is the seed.
    """
    c0, c3 = np.uint32(counter), np.uint32(0)
    c1, c2 = np.uint32(np.uint64(position) & LOW_WORD), np.uint32(np.uint64(position) >> WORD_BITS)
    k0, k1 = np.uint64(seed) & LOW_WORD, np.uint64(seed) >> WORD_BITS
    for _ in range(PHILOX_ROUNDS):
        first, second = np.uint64(c0) * PHILOX_M0, np.uint64(c2) * PHILOX_M1
        c0 = np.uint32(np.uint32(second >> WORD_BITS) ^ c1 ^ np.uint32(k0))
        c2 = np.uint32(np.uint32(first >> WORD_BITS) ^ c3 ^ np.uint32(k1))
        c1, c3 = np.uint32(second & LOW_WORD), np.uint32(first & LOW_WORD)
        k0, k1 = (k0 + PHILOX_W0) & LOW_WORD, (k1 + PHILOX_W1) & LOW_WORD
    return c0, c1, c2, c3


def token_counter(token: Any) -> tuple[Any, Any]:
    """Philox counter and output word of token t: in each run of 256 tokens t % 64 counts and word t // 64 % 4 is read.

    So 64 counters side by side fill 256 consecutive tokens with four plain vector stores each.
    """
    return token // RANDOM_BLOCK * 64 + token % 64, token % RANDOM_BLOCK // 64
