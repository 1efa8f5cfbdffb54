"""The first two of three steps of top_k, top_p and min_p: integer weights, and the few candidates that decide.

Weigh: every block counts and sums its weights above each of three floors. Gather: the lowest floor that suffices is
known now, and so is where each block's candidates go; they are written down in the order of their tokens. Typically
hundreds are left, in a flat row all tokens. gpu_threshold.py decides among them.

Integer sums do not depend on order, so every result is that of filters.py on the CPU, to the bit.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_numbers import NEGATIVE_INFINITY, ONE, value_of, weight
from .gpu_rows import TOP_K, best_of, cuts, integer, sharpness, top_share, usable

FLOORS = tl.constexpr(3)
STATISTICS = 6  # per block: (count, sum) above each floor
_STATISTICS = tl.constexpr(STATISTICS)


@jit
def floor_of(index):
    """e^-9 and e^-14 of the most probable token, as filters.LIKELY, and everything that has a weight."""
    return tl.where(index == 0, ONE >> 13, tl.where(index == 1, ONE >> 20, 1))


@jit
def weights_of(adjusted, rows, best, row, token, VOCAB: tl.constexpr):
    """Integer weights of tokens; 0 beyond the vocabulary."""
    logits = tl.load(adjusted + row * VOCAB + token, mask=token < VOCAB, other=NEGATIVE_INFINITY)
    return weight((logits - value_of(best)) * sharpness(rows, row))


@jit
def rounded_up(value):
    """ceil of a float64 >= 0, as int64."""
    whole = value.to(tl.int64)
    return whole + (whole.to(tl.float64) < value).to(tl.int64)


@jit
def statistic(amounts, row, index, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """One statistic of all blocks of a row, [PADDED_BLOCKS]."""
    block = tl.arange(0, PADDED_BLOCKS)
    return tl.load(amounts + (row * _STATISTICS + index) * BLOCKS + block, mask=block < BLOCKS, other=0)


@jit
def chosen_floor(rows, row, amounts, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """The first floor above which there is enough for top_k, or else for top_p."""
    top_k = integer(rows, row, TOP_K)
    total = tl.sum(statistic(amounts, row, 2 * FLOORS - 1, BLOCKS, PADDED_BLOCKS), 0)
    needed = rounded_up(top_share(rows, row) * total.to(tl.float64))
    chosen = FLOORS - 1
    for past in tl.static_range(1, FLOORS):
        index = FLOORS - 1 - past
        count = tl.sum(statistic(amounts, row, 2 * index, BLOCKS, PADDED_BLOCKS), 0)
        amount = tl.sum(statistic(amounts, row, 2 * index + 1, BLOCKS, PADDED_BLOCKS), 0)
        enough = tl.where(top_k > 0, count >= top_k, amount >= needed)
        chosen = tl.where(enough, index, chosen)
    return chosen


@jit
def weigh_kernel(
    adjusted, rows, best, faults, amounts,
    VOCAB: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr,
):  # fmt: skip
    await_inputs()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = best_of(best, row, BLOCKS, PADDED_BLOCKS)
    if cuts(rows, row) & usable(top, faults, row, BLOCKS, PADDED_BLOCKS):
        held = weights_of(adjusted, rows, top, row, block * TILE + tl.arange(0, TILE), VOCAB)
        for index in tl.static_range(FLOORS):
            above = held >= floor_of(index)
            out = amounts + (row * _STATISTICS + 2 * index) * BLOCKS + block
            tl.store(out, tl.sum(above.to(tl.int32), 0).to(tl.int64))
            tl.store(out + BLOCKS, tl.sum(tl.where(above, held, 0).to(tl.int64), 0))


@jit
def gather_kernel(
    adjusted, rows, best, faults, amounts, held, tokens,
    VOCAB: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr,
):  # fmt: skip
    await_inputs()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = best_of(best, row, BLOCKS, PADDED_BLOCKS)
    if cuts(rows, row) & usable(top, faults, row, BLOCKS, PADDED_BLOCKS):
        index = chosen_floor(rows, row, amounts, BLOCKS, PADDED_BLOCKS)
        counts = statistic(amounts, row, 2 * index, BLOCKS, PADDED_BLOCKS)
        before = tl.sum(tl.where(tl.arange(0, PADDED_BLOCKS) < block, counts, 0), 0)
        token = block * TILE + tl.arange(0, TILE)
        value = weights_of(adjusted, rows, top, row, token, VOCAB)
        above = value >= floor_of(index)
        place = row * VOCAB + before + tl.cumsum(above.to(tl.int32), 0) - 1
        tl.store(held + place, value, mask=above)
        tl.store(tokens + place, token, mask=above)
