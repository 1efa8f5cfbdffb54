"""Dot products on AArch64: four bytes for each of 16 lanes, as one vector of this engine takes four of its registers.

    i8mm     USDOT: unsigned times signed bytes, as x86's VPDPBUSD
    dotprod  SDOT: signed bytes alone. Weights get their centre taken off, which flips each byte's sign; of other
             unsigned bytes 128 times the sum of the signed ones is added again
    neither  products of 16 bits (the widest is 255 * -128, which fits), added by pairs

All are exact, so the results are those of every other CPU. With bf16, BFDOT multiplies pairs of bfloat16: products, the
sum of two and the total are each rounded to odd (unless FPCR.EBF is set, which Linux leaves off), and denormals are 0.
Only called where `has("neon")`.
"""

from __future__ import annotations

from llvmlite import ir

from .lanes import LANES, VI, bfloat16, constant, declare, f32, i8, i16, i32, vector
from .target import has

_QUARTER = LANES // 4
WORDS, BYTES, _SHORTS = vector(i32, _QUARTER), vector(i8, 4 * _QUARTER), vector(i16, 2 * _QUARTER)
FLOATS, PAIRS = vector(f32, _QUARTER), vector(bfloat16, 2 * _QUARTER)
FLIP_SIGNS = constant(i32, -0x7F7F7F80)  # of each byte, by xor


def multiplies_signed() -> bool:
    """Whether products of signed bytes are the faster ones."""
    return has("dotprod") and not has("i8mm")


def quad_step(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """total + the dot product of four unsigned and four signed bytes in each lane."""
    if has("i8mm"):
        return _dot(b, "usdot", total, unsigned, signed)
    if has("dotprod"):
        # LLVM computes it once for all that the signed bytes are multiplied by, and once for lanes that are the same.
        less = _dot(b, "sdot", constant(i32, 0), FLIP_SIGNS, signed)
        return b.sub(_dot(b, "sdot", total, b.xor(unsigned, FLIP_SIGNS), signed), less)
    return joined(b, [b.add(t, _sums_of_shorts(b, u, s)) for t, u, s in _quarters(b, total, unsigned, signed)])


def signed_quad_step(b: ir.IRBuilder, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    """The same of four and four signed bytes. Only where `multiplies_signed`."""
    return _dot(b, "sdot", total, left, right)


def look_up(b: ir.IRBuilder, table: list[int], indices: ir.Value) -> ir.Value:
    """The table's byte, of 16, for each byte of a vector."""
    function = declare(b.module, "llvm.aarch64.neon.tbl1.v16i8", BYTES, [BYTES] * 2)
    found = [b.call(function, [ir.Constant(BYTES, table), b.bitcast(part, BYTES)]) for (part,) in _quarters(b, indices)]
    return joined(b, [b.bitcast(part, WORDS) for part in found])


def pair_step(b: ir.IRBuilder, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    """total + left0 * right0 + left1 * right1 in each lane of (bfloat16, bfloat16) pairs."""
    function = product(b, "bfdot.v4f32.v8bf16", FLOATS, PAIRS)
    parts = _quarters(b, total, left, right)
    return joined(b, [b.call(function, [t, b.bitcast(x, PAIRS), b.bitcast(y, PAIRS)]) for t, x, y in parts])


def product(b: ir.IRBuilder, name: str, total: ir.Type, operand: ir.Type) -> ir.Function:
    """An instruction that adds the product of two operands to a total."""
    return declare(b.module, f"llvm.aarch64.neon.{name}", total, [total, operand, operand])


def _dot(b: ir.IRBuilder, name: str, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    function = product(b, f"{name}.v4i32.v16i8", WORDS, BYTES)
    parts = _quarters(b, total, left, right)
    return joined(b, [b.call(function, [t, b.bitcast(x, BYTES), b.bitcast(y, BYTES)]) for t, x, y in parts])


def _sums_of_shorts(b: ir.IRBuilder, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    wide = vector(i16, 4 * _QUARTER)
    products = b.mul(b.zext(b.bitcast(unsigned, BYTES), wide), b.sext(b.bitcast(signed, BYTES), wide))
    pairs = declare(b.module, "llvm.aarch64.neon.saddlp.v4i32.v8i16", WORDS, [_SHORTS])
    halves = [ir.Constant(vector(i32, 8), list(range(start, start + 8))) for start in (0, 8)]
    sums = [b.call(pairs, [b.shuffle_vector(products, products, half)]) for half in halves]
    return b.call(declare(b.module, "llvm.aarch64.neon.addp.v4i32", WORDS, [WORDS] * 2), sums)


def _quarters(b: ir.IRBuilder, *values: ir.Value) -> list[tuple[ir.Value, ...]]:
    starts = range(0, LANES, _QUARTER)
    indices = [ir.Constant(WORDS, list(range(start, start + _QUARTER))) for start in starts]
    return [tuple(b.shuffle_vector(value, value, index) for value in values) for index in indices]


def quarters(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    """A vector's four registers."""
    return [part for (part,) in _quarters(b, value)]


def joined(b: ir.IRBuilder, quarters: list[ir.Value]) -> ir.Value:
    eight = ir.Constant(vector(i32, 8), list(range(8)))
    halves = [b.shuffle_vector(*quarters[start : start + 2], eight) for start in (0, 2)]
    return b.shuffle_vector(*halves, ir.Constant(VI, list(range(LANES))))
