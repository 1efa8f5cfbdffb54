"""One step of a dot product on 16 lanes, for each weight format.

A step takes one vector of packed weights (16 channels, each with as many consecutive k as fit in 32 bits) and 32 bits
of one row's activations, broadcast:
    float32   1 k    w * x
    bfloat16  2 k    w0 * x0 + w1 * x1, in float32, where one instruction does it; elsewhere halves of the weights are
                     taken as float32, and so is what is broadcast (`broadcast_format`)
    int8      4 k    unsigned weights (w + 128) times signed activations, in int32; exact
    codes     4 k    like int8, with codes of 4, 6 or 8 bits, several steps and rows at once; exact as well
The variants of one CPU differ only in speed. Between CPUs, bfloat16 may differ in the last bits (VDPBF16PS and BFDOT
flush denormals and round in ways of their own), int8 never does.
"""

from __future__ import annotations

from llvmlite import ir

from . import neon
from .arithmetic import fma, round_bfloat16
from .lanes import LANES, VF, VI, bfloat16, constant, declare, f32, i8, i16, i32, i64, int64, splat, vector
from .neon_matrix import apart, matrix_steps, multiplies_matrices, paired
from .target import has, wide_registers

_PAIRS = vector(bfloat16, 2 * LANES)
_BYTES = vector(i8, 4 * LANES)
K_PER_STEP = {"float32": 1, "bfloat16": 2, "int8": 4}


def zero(weight_format: str) -> ir.Value:
    """The empty accumulator."""
    return constant(i32, 0) if weight_format == "int8" else constant(f32, 0.0)


def step(b: ir.IRBuilder, weight_format: str, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """total + weights . x, with the weights as 16 x 32 bits and x a 32-bit scalar."""
    if weight_format == "float32":
        return fma(b, b.bitcast(weights, VF), splat(b, b.bitcast(x, f32)), total)
    if weight_format == "bfloat16":
        return _pair_step(b, total, weights, splat(b, x))
    return quad_step(b, total, weights, splat(b, x))


def centred_step(b: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """As `step` for int8, but with the 128 taken off the weights first. Only where not `codes_stay_unsigned`."""
    signed = b.xor(weights, constant(i32, -0x7F7F7F80))  # flips the sign of each byte
    if has("neon"):
        return neon.signed_quad_step(b, total, signed, splat(b, x))
    return _by_halves(b, total, signed, splat(b, x), _signed_multiply_add_256)


def _pair_step(b: ir.IRBuilder, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    """total + left0 * right0 + left1 * right1 in each lane of (bfloat16, bfloat16) pairs."""
    assert multiplies_pairs()
    if has("neon"):
        return neon.pair_step(b, total, left, right)
    function = declare(b.module, "llvm.x86.avx512bf16.dpbf16ps.512", VF, [VF, _PAIRS, _PAIRS])
    return b.call(function, [total, b.bitcast(left, _PAIRS), b.bitcast(right, _PAIRS)])


def half_of(b: ir.IRBuilder, pairs: ir.Value, half: int) -> ir.Value:
    """The bits of the first or second bfloat16 of each pair as float32: a bfloat16 is a float32's upper half."""
    return b.and_(pairs, constant(i32, -65536)) if half else b.shl(pairs, constant(i32, 16))


def multiplies_pairs() -> bool:
    """Whether one instruction multiplies pairs of bfloat16."""
    return has("neon", "bf16") or (has("avx512bf16") and wide_registers())


def broadcast_format(weight_format: str) -> str:
    """What is broadcast to such weights: float32 instead of pairs of bfloat16 that would be widened in every step."""
    return "float32" if weight_format == "bfloat16" and not multiplies_pairs() else weight_format


def code_steps(
    b: ir.IRBuilder, totals: list[ir.Value], weights: list[ir.Value], xs: list[list[ir.Value]], bits: int
) -> list[ir.Value]:
    """Per row: total + the products of vectors of codes and scalars of 4 signed bytes (not -128).

    Codes are unsigned bytes below 2 ** bits: 4 with at most 8 vectors, 6 with an even number, or 8. Exact. Their centre
    is for the start values to undo, but for codes of 8 bits unless `codes_stay_unsigned`: it is taken from those here.
    Where `codes_in_pairs`, the vectors are `paired`.
    """
    if codes_in_pairs(len(xs), bits):
        whole = [[_two_words(b, *own[quad : quad + 2]) for quad in range(0, len(own), 2)] for own in xs]
        return apart(b, matrix_steps(b, "int8", paired(b, totals), weights, whole), len(totals))
    if has_quads() or (bits == 8 and codes_stay_unsigned()):
        for row, own in enumerate(xs):
            for quad, x in zip(weights, own, strict=True):
                totals[row] = _code_step(b, totals[row], quad, x, bits)
        return totals
    lanes = LANES if wide_registers() else LANES // 2
    indices = [ir.Constant(vector(i32, lanes), list(range(start, start + lanes))) for start in range(0, LANES, lanes)]

    def split(value: ir.Value) -> list[ir.Value]:
        return [b.shuffle_vector(value, value, index) for index in indices]

    sums = [split(total) for total in totals]
    shorts: list[list[ir.Value]] = [[None] * len(indices) for _ in totals]
    # A pair of products is at most 2 * 127 * (2 ** bits - 1): of 4 bits eight pairs fit into 16 bits, of 6 bits two,
    # and VPMADDUBSW need not saturate. The rows come last: a vector of weights stays in its register for all.
    run = {4: 8, 6: 2, 8: 1}[bits]
    for place, quad in enumerate(weights):
        parts = split(quad)
        if bits == 8:
            parts = [b.xor(part, constant(i32, -0x7F7F7F80, lanes)) for part in parts]  # flips the sign of each byte
        for row, own in enumerate(xs):
            x = splat(b, own[place], lanes)
            for part, w in enumerate(parts):
                product = _signed_products(b, w, x) if bits == 8 else _products(b, w, x)
                before = shorts[row][part]
                shorts[row][part] = product if before is None else b.add(before, product)
                if place % run == run - 1 or place == len(weights) - 1:
                    sums[row][part] = _pair_sums(b, sums[row][part], shorts[row][part])
                    shorts[row][part] = None
    if lanes == LANES:
        return [total for (total,) in sums]
    return [b.shuffle_vector(*halves, ir.Constant(VI, list(range(LANES)))) for halves in sums]


def codes_in_pairs(rows: int, bits: int) -> bool:
    """Whether `code_steps` takes vectors of such codes, for so many rows, interleaved by twos (`paired`).

    Not of 6 bits: they would have to be interleaved after they are unpacked, which costs what it saves.
    """
    return rows > 1 and bits != 6 and multiplies_matrices("int8")


def _two_words(b: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    """64 bits, for which LLVM loads both at once."""
    return b.or_(b.zext(first, i64), b.shl(b.zext(second, i64), int64(32)))


def _code_step(b: ir.IRBuilder, total: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    if bits == 8 and not codes_stay_unsigned():
        return centred_step(b, total, codes, x)
    if has("neon") and neon.multiplies_signed():
        return neon.signed_quad_step(b, total, codes, splat(b, x))
    return quad_step(b, total, codes, splat(b, x))


def has_quads() -> bool:
    """Whether one instruction multiplies quads of bytes, or there is nothing better than doing it byte by byte."""
    return (has("avx512vnni") and wide_registers()) or has("avxvnni") or not has("avx2")


def codes_stay_unsigned() -> bool:
    """Whether 8-bit codes are multiplied as they are, so that something else must take their centre from the sum."""
    return (has_quads() or wide_registers()) and not (has("neon") and neon.multiplies_signed())


def _products(b: ir.IRBuilder, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Products of bytes, added by pairs in 16 bits."""
    lanes = unsigned.type.count
    octets, shorts = vector(i8, 4 * lanes), vector(i16, 2 * lanes)
    name = "avx512.pmaddubs.w.512" if lanes == LANES else "avx2.pmadd.ub.sw"
    function = declare(b.module, f"llvm.x86.{name}", shorts, [octets] * 2)
    return b.call(function, [b.bitcast(unsigned, octets), b.bitcast(signed, octets)])


def _signed_products(b: ir.IRBuilder, w: ir.Value, x: ir.Value) -> ir.Value:
    """The same of signed bytes: |w| and x with the sign of w. A pair is at most 2 * 128 * 127, which fits."""
    octets = vector(i8, 32)
    absolute = declare(b.module, "llvm.abs.v32i8", octets, [octets, ir.IntType(1)])
    signs = declare(b.module, "llvm.x86.avx2.psign.b", octets, [octets] * 2)
    values = b.bitcast(w, octets)
    magnitude = b.call(absolute, [values, ir.Constant(ir.IntType(1), 0)])
    lanes = vector(i32, 8)
    return _products(b, b.bitcast(magnitude, lanes), b.bitcast(b.call(signs, [b.bitcast(x, octets), values]), lanes))


def _pair_sums(b: ir.IRBuilder, total: ir.Value, sums: ir.Value) -> ir.Value:
    """total + the sums of pairs of 16-bit values."""
    lanes = total.type.count
    shorts = vector(i16, 2 * lanes)
    name = "avx512.pmaddw.d.512" if lanes == LANES else "avx2.pmadd.wd"
    pairs = declare(b.module, f"llvm.x86.{name}", total.type, [shorts] * 2)
    return b.add(total, b.call(pairs, [sums, constant(i16, 1, 2 * lanes)]))


def round_to_broadcast(b: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Vectors of 16 positive normal values, rounded to bfloat16 and in broadcast_format; alike on all CPUs."""
    if not multiplies_pairs():
        return [as_broadcast(b, value) for value in vectors]
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    if has("neon"):
        whole = ir.Constant(vector(i32, 2 * LANES), list(range(2 * LANES)))
        return [b.bitcast(b.fptrunc(b.shuffle_vector(*pair, whole), _PAIRS), VI) for pair in pairs]
    function = declare(b.module, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _PAIRS, [VF, VF])
    return [b.bitcast(b.call(function, [high, low]), VI) for low, high in pairs]


def as_broadcast(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """16 values rounded to bfloat16 in broadcast_format."""
    bits = round_bfloat16(b, value)
    return bits if multiplies_pairs() else b.bitcast(b.shl(b.zext(bits, VI), constant(i32, 16)), VF)


def quad_step(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """total + the dot product of four unsigned and four signed bytes in each lane, exact."""
    if has("neon"):
        return neon.quad_step(b, total, unsigned, signed)
    if has("avx512vnni") and wide_registers():
        # Only the second, signed operand can be a broadcast from memory: hence unsigned weights.
        function = declare(b.module, "llvm.x86.avx512.vpdpbusd.512", VI, [VI, _BYTES, _BYTES])
        return b.call(function, [total, b.bitcast(unsigned, _BYTES), b.bitcast(signed, _BYTES)])
    if has("avx2"):
        return _by_halves(b, total, unsigned, signed, _vnni_256 if has("avxvnni") else _multiply_add_256)
    eight, mask = constant(i32, 8), constant(i32, 255)
    for _ in range(4):  # any CPU: one byte of each lane at a time
        byte = b.ashr(b.shl(signed, constant(i32, 24)), constant(i32, 24))
        total = b.add(total, b.mul(b.and_(unsigned, mask), byte))
        unsigned, signed = b.lshr(unsigned, eight), b.lshr(signed, eight)
    return total


def _by_halves(b: ir.IRBuilder, total: ir.Value, left: ir.Value, right: ir.Value, half_step: object) -> ir.Value:
    assert callable(half_step)
    indices = [ir.Constant(vector(i32, 8), list(range(start, start + 8))) for start in (0, 8)]
    halves = [
        half_step(b, *(b.shuffle_vector(operand, operand, index) for operand in (total, left, right)))
        for index in indices
    ]
    return b.shuffle_vector(*halves, ir.Constant(VI, list(range(16))))


def _vnni_256(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    lanes, octets = vector(i32, 8), vector(i8, 32)
    function = declare(b.module, "llvm.x86.avx512.vpdpbusd.256", lanes, [lanes, octets, octets])
    return b.call(function, [total, b.bitcast(unsigned, octets), b.bitcast(signed, octets)])


def _signed_multiply_add_256(b: ir.IRBuilder, total: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
    return _pair_sums(b, total, _signed_products(b, w, x))


def _multiply_add_256(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """By 16-bit VPMADDWD on even and odd bytes, which is exact; VPMADDUBSW would saturate (255 * 127 * 2 > 32767)."""
    lanes, shorts = vector(i32, 8), vector(i16, 16)
    eight = constant(i16, 8, 16)
    function = declare(b.module, "llvm.x86.avx2.pmadd.wd", lanes, [shorts, shorts])
    w, x = b.bitcast(unsigned, shorts), b.bitcast(signed, shorts)
    even = b.call(function, [b.and_(w, constant(i16, 255, 16)), b.ashr(b.shl(x, eight), eight)])
    odd = b.call(function, [b.lshr(w, eight), b.ashr(x, eight)])
    return b.add(total, b.add(even, odd))
