"""FP4 numbers (E2M1) in a panel of 4-bit codes: each is looked up before it is multiplied, one instruction for 64.

A number doubled is an integer from -12 to 12; 12 is added, so that a code is unsigned. Such codes are too large for the
4-bit path of CPUs that add products in 16 bits: there, and where no instruction looks bytes up, they take 6 bits.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from ..simd import dot, neon
from ..simd.functions import Values, either
from ..simd.lanes import LANES, VI, declare, i8, i32, vector
from ..simd.target import has, wide_registers
from .codes import FP4, CodeLayout

ZERO = 12  # the code of 0
BITS_OF_CODES = np.zeros(64, np.uint8)  # of the codes that FP4 has, the 4 bits
BITS_OF_CODES[FP4[::-1]] = np.arange(16)[::-1]
_CODES = [int(code) - 32 + ZERO for code in FP4]


def looked_up_here() -> bool:
    return has("neon") or (dot.has_quads() and has("avx2"))


def packed_bits(layout: CodeLayout) -> int:
    """Bits of a code in packed weights, on this CPU."""
    return 4 if layout.fp4 and looked_up_here() else layout.bits


def codes_of(b: ir.IRBuilder, is_fp4: ir.Value, nibbles: Values) -> Values:
    """The codes of a group's quads; `is_fp4` says whether they are to be looked up."""
    before = b.block
    with b.if_then(is_fp4):
        found = [_looked_up(b, quad) for quad in nibbles]
        inside = b.block
    return [either(b, new, inside, old, before) for new, old in zip(found, nibbles, strict=True)]


def _looked_up(b: ir.IRBuilder, quad: ir.Value) -> ir.Value:
    if has("neon"):
        return neon.look_up(b, _CODES, quad)
    lanes = LANES if wide_registers() else LANES // 2
    octets = vector(i8, 4 * lanes)
    name = "avx512.pshuf.b.512" if lanes == LANES else "avx2.pshuf.b"
    function = declare(b.module, f"llvm.x86.{name}", octets, [octets] * 2)
    table = ir.Constant(octets, _CODES * (lanes // 4))  # of each 128 bits
    parts = []
    for start in range(0, LANES, lanes):
        own = b.shuffle_vector(quad, quad, ir.Constant(vector(i32, lanes), list(range(start, start + lanes))))
        parts.append(b.bitcast(b.call(function, [table, b.bitcast(own, octets)]), vector(i32, lanes)))
    return parts[0] if len(parts) == 1 else b.shuffle_vector(*parts, ir.Constant(VI, list(range(LANES))))


def number_of(b: ir.IRBuilder, nibble: ir.Value) -> ir.Value:
    """The code of one number, as a vector of integers: without a table, on any CPU."""
    kind = nibble.type

    def all_of(value: int) -> ir.Value:
        return ir.Constant(kind, [value] * kind.count)

    def above(size: ir.Value, least: int) -> ir.Value:
        return b.select(b.icmp_signed(">", size, all_of(least)), b.sub(size, all_of(least)), all_of(0))

    size = b.and_(nibble, all_of(7))
    doubled = b.add(b.add(size, above(size, 4)), b.mul(above(size, 6), all_of(2)))
    negative = b.icmp_signed(">", nibble, all_of(7))
    return b.add(all_of(ZERO), b.select(negative, b.sub(all_of(0), doubled), doubled))
