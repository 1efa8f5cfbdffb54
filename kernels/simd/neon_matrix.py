"""Products of 2 x 2 matrices on AArch64: two rows times two channels, 64 bits of each, in one instruction.

    i8mm  USMMLA: 8 k of int8, unsigned weights times signed activations; exact
    bf16  BFMMLA: 4 k of bfloat16; defined as two BFDOT one after the other, so its bits are those of neon.pair_step

That is twice the products of USDOT or BFDOT. Weights stay as they are packed: two steps of the same 16 channels, a lane
of one and a lane of the other in turn, are 64 bits of each channel. The totals of two rows are kept interleaved in the
same way. An odd last row is a pair with itself.
"""

from __future__ import annotations

from llvmlite import ir

from .lanes import LANES, VI, i32, i64, load, vector
from .neon import dot, dot_pairs
from .target import has

Values = list[ir.Value]
STEPS = 2  # at once
_IN_TURN = [lane + LANES * second for lane in range(LANES) for second in range(2)]


def multiplies_matrices(weight_format: str) -> bool:
    return has("neon") and has({"int8": "i8mm", "bfloat16": "bf16"}.get(weight_format, "none"))


def matrix_steps(b: ir.IRBuilder, weight_format: str, totals: Values, weights: Values, xs: Values) -> Values:
    """Totals, as `paired` makes them, + two vectors of weights times the 64 bits that each row has at its address."""
    halves, results = interleaved(b, *weights), list[ir.Value]()
    add = dot_pairs if weight_format == "bfloat16" else dot
    name = "bfmmla" if weight_format == "bfloat16" else "usmmla"
    for row in range(0, len(xs), 2):
        both = ir.Constant(vector(i64, 2), ir.Undefined)
        for place, address in enumerate([xs[row], xs[min(row + 1, len(xs) - 1)]]):
            both = b.insert_element(both, load(b, address, i64), ir.Constant(i32, place))
        x = b.bitcast(both, vector(i32, 4))
        x = b.shuffle_vector(x, x, ir.Constant(VI, [*range(4)] * 4))
        results += [add(b, name, *each, x) for each in zip(totals[row : row + 2], halves, strict=True)]
    return results


def interleaved(b: ir.IRBuilder, first: ir.Value, second: ir.Value) -> Values:
    """A lane of one, a lane of the other, and so on: two vectors."""
    return [b.shuffle_vector(first, second, ir.Constant(VI, half)) for half in (_IN_TURN[:LANES], _IN_TURN[LANES:])]


def paired(b: ir.IRBuilder, totals: Values) -> Values:
    """Each two rows' totals interleaved."""
    even = [*totals, totals[-1]][: len(totals) + len(totals) % 2]
    return [half for row in range(0, len(even), 2) for half in interleaved(b, *even[row : row + 2])]


def apart(b: ir.IRBuilder, totals: Values, rows: int) -> Values:
    """What `paired` made of so many rows, as rows again."""
    orders = [ir.Constant(VI, list(range(second, 2 * LANES, 2))) for second in range(2)]
    return [b.shuffle_vector(*totals[row - row % 2 :][:2], orders[row % 2]) for row in range(rows)]
