"""Products of 2 x 2 matrices on AArch64: two rows times two channels, 64 bits of each, in one instruction.

    i8mm  USMMLA: 8 k of int8, unsigned weights times signed activations; exact
    bf16  BFMMLA: 4 k of bfloat16; defined as two BFDOT one after the other, so its bits are those of neon.pair_step

That is twice the products of USDOT or BFDOT. Weights stay as they are packed: two steps of the same 16 channels, a lane
of one and a lane of the other in turn, are 64 bits of each channel. The totals of two rows are kept interleaved in the
same way. An odd last row is a pair with itself.
"""

from __future__ import annotations

from llvmlite import ir

from .lanes import LANES, VI, constant, i32, i64
from .neon import BYTES, FLOATS, PAIRS, WORDS, joined, product, quarters
from .target import has

Values = list[ir.Value]
STEPS = 2  # at once
_MATRIX = {"int8": ("usmmla.v4i32.v16i8", WORDS, BYTES), "bfloat16": ("bfmmla", FLOATS, PAIRS)}
_IN_TURN = [lane + LANES * second for lane in range(LANES) for second in range(2)]


def multiplies_matrices(weight_format: str) -> bool:
    return has("neon") and has({"int8": "i8mm", "bfloat16": "bf16"}.get(weight_format, "none"))


def matrix_steps(b: ir.IRBuilder, weight_format: str, totals: Values, weights: Values, xs: list[Values]) -> Values:
    """Totals + weights, both as `paired` makes them, times the 64 bits that each row has for two vectors of weights."""
    name, result, operand = _MATRIX[weight_format]
    columns = [quarters(b, half) for half in weights]
    sums = [quarters(b, total) for total in totals]
    function = product(b, name, result, operand)
    for pair in range(0, len(totals), 2):
        rows = zip(xs[pair], xs[min(pair + 1, len(xs) - 1)], strict=True)
        for number, bits in enumerate(rows):
            x, step = constant(i64, 0, 2), number * STEPS
            for place, own in enumerate(bits):
                x = b.insert_element(x, own, ir.Constant(i32, place))
            x = b.bitcast(x, operand)
            for half in range(2):
                parts = zip(sums[pair + half], columns[step + half], strict=True)
                sums[pair + half] = [b.call(function, [total, b.bitcast(w, operand), x]) for total, w in parts]
    return [joined(b, parts) for parts in sums]


def paired(b: ir.IRBuilder, vectors: Values) -> Values:
    """Each two vectors interleaved, in two again. An odd last one with itself."""
    order = [ir.Constant(VI, half) for half in (_IN_TURN[:LANES], _IN_TURN[LANES:])]
    seconds = [*vectors[1::2], vectors[-1]]
    return [b.shuffle_vector(*two, half) for two in zip(vectors[::2], seconds, strict=False) for half in order]


def apart(b: ir.IRBuilder, halves: Values, count: int) -> Values:
    """The vectors of which `paired` made these halves."""
    order = [ir.Constant(VI, list(range(second, 2 * LANES, 2))) for second in range(2)]
    vectors: Values = []
    for first, second in zip(halves[::2], halves[1::2], strict=True):
        vectors += [b.shuffle_vector(first, second, own) for own in order]
    return vectors[:count]
