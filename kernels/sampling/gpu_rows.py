"""The rows of rows.py on the device, word for word: int32 [S, ROW_WORDS] is what numpy holds, seen as 32-bit words.

So the host copies its records as they are. And what several kernels ask of a row: its kind, its temperature, whether
its logits are usable.
"""

from ..gpu.language import jit, tl
from .gpu_numbers import GREEDY_BELOW, LOWEST_RANK, NEGATIVE_INFINITY_KEY, key_of
from .rows import ROW

ROW_WORDS = ROW.itemsize // 4


def _word(field: str) -> tl.constexpr:
    assert ROW.fields is not None
    return tl.constexpr(ROW.fields[field][1] // 4)


REPETITION, PRESENCE, FREQUENCY = _word("repetition"), _word("presence"), _word("frequency")
TEMPERATURE, TOP_K, MIN_P, TOP_P = _word("temperature"), _word("top_k"), _word("min_p"), _word("top_p")
SEED, POSITION, TARGET, TOP = _word("seed"), _word("position"), _word("target"), _word("top")
_WORDS = tl.constexpr(ROW_WORDS)


@jit
def integer(rows, row, FIELD: tl.constexpr):
    return tl.load(rows + row * _WORDS + FIELD)


@jit
def real(rows, row, FIELD: tl.constexpr):
    return integer(rows, row, FIELD).to(tl.float32, bitcast=True)


@jit
def half(rows, row, FIELD: tl.constexpr, HIGH: tl.constexpr):
    """One 32-bit word of a 64-bit field, as uint32."""
    return tl.load(rows + row * _WORDS + FIELD + HIGH).to(tl.uint32, bitcast=True)


@jit
def long(rows, row, FIELD: tl.constexpr):
    """A 64-bit field, as uint64."""
    return half(rows, row, FIELD, 0).to(tl.uint64) | (half(rows, row, FIELD, 1).to(tl.uint64) << 32)


@jit
def top_share(rows, row):
    return long(rows, row, TOP_P).to(tl.float64, bitcast=True)


@jit
def draws(rows, row):
    """Whether random numbers decide: not greedy, and not a row that only reports."""
    greedy = (real(rows, row, TEMPERATURE) < GREEDY_BELOW) | (integer(rows, row, TOP_K) == 1)
    return (integer(rows, row, TARGET) < 0) & (greedy == 0)


@jit
def cuts(rows, row):
    """Whether top_k or top_p cuts off a tail, which takes a threshold; min_p alone does not."""
    return draws(rows, row) & ((integer(rows, row, TOP_K) > 0) | (top_share(rows, row) < 1.0))


@jit
def sharpness(rows, row):
    return tl.div_rn(1.0, tl.maximum(real(rows, row, TEMPERATURE), GREEDY_BELOW))


@jit
def best_of(ranks, row, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """The best of a row's blocks."""
    block = tl.arange(0, PADDED_BLOCKS)
    return tl.max(tl.load(ranks + row * BLOCKS + block, mask=block < BLOCKS, other=LOWEST_RANK), 0)


@jit
def usable(best, faults, row, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """Whether a row has no NaN and no +inf, and anything above -inf; `best` is the best of its blocks."""
    block = tl.arange(0, PADDED_BLOCKS)
    faulty = tl.max(tl.load(faults + row * BLOCKS + block, mask=block < BLOCKS, other=0), 0)
    return (faulty == 0) & (key_of(best) > NEGATIVE_INFINITY_KEY)
