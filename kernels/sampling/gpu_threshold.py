"""The last of three steps of top_k, top_p and min_p: what is kept of a row, exact, without a sort.

All three keep a head of the order (larger weight, then smaller token), so what is left is described by a threshold and
by the last token that is kept of those which weigh just that. The threshold is found by a radix search over the bits of
the weight, among the row's candidates, by one program per row.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_filters import FLOORS, chosen_floor, rounded_up, statistic
from .gpu_numbers import ONE
from .gpu_rows import MIN_P, TOP_K, best_of, cuts, integer, real, top_share, usable

CANDIDATES = tl.constexpr(1024)  # at a time
DIGIT = tl.constexpr(8)  # thresholds tried in one pass: three bits


@jit
def amount_from(held, count, threshold, BY_COUNT: tl.constexpr):
    """How many candidates weigh at least `threshold`, or how much they weigh together."""
    amounts = tl.zeros([CANDIDATES], tl.int64)
    for start in range(0, count, CANDIDATES):
        place = start + tl.arange(0, CANDIDATES)
        value = tl.load(held + place, mask=place < count, other=-1)
        amounts += tl.where(value >= threshold, 1 if BY_COUNT else value, 0).to(tl.int64)
    return tl.sum(amounts, 0)


@jit
def amounts_from(held, count, thresholds, BY_COUNT: tl.constexpr):
    """The same for DIGIT thresholds [1, DIGIT] at once."""
    amounts = tl.zeros([CANDIDATES, DIGIT], tl.int64)
    for start in range(0, count, CANDIDATES):
        place = start + tl.arange(0, CANDIDATES)[:, None]
        value = tl.load(held + place, mask=place < count, other=-1)
        amounts += tl.where(value >= thresholds, 1 if BY_COUNT else value, 0).to(tl.int64)
    return tl.sum(amounts, 0)


@jit
def highest_threshold(held, count, needed, BY_COUNT: tl.constexpr):
    """The largest t such that the candidates of weight >= t amount to `needed`; 1 if all together do not.

    Three bits at a time, from bits 30 to 28 down to bits 2 to 0 (bits 2 and 1 are settled by then and stay). What
    takes the time is the number of passes, each with a barrier, and not the comparisons.
    """
    step = tl.arange(0, DIGIT)
    threshold = 0
    for past in range(11):
        shift = tl.maximum(28 - 3 * past, 0)
        enough = amounts_from(held, count, (threshold + (step << shift))[None, :], BY_COUNT) >= needed
        threshold += tl.sum(tl.where(step > 0, enough.to(tl.int32), 0), 0) << shift
    return tl.maximum(threshold, 1)


@jit
def last_tie(held, tokens, count, threshold, ties):
    """The token of the `ties`-th candidate that weighs exactly `threshold`, in the order of tokens."""
    found, last = (ties * 0).to(tl.int32), -1
    for start in range(0, count, CANDIDATES):
        place = start + tl.arange(0, CANDIDATES)
        tie = (tl.load(held + place, mask=place < count, other=-1) == threshold).to(tl.int32)
        rank = found + tl.cumsum(tie, 0)
        token = tl.load(tokens + place, mask=place < count, other=-1)
        last = tl.maximum(last, tl.max(tl.where((tie > 0) & (rank <= ties), token, -1), 0))
        found += tl.sum(tie, 0)
    return last


@jit
def threshold_kernel(
    rows, best, faults, amounts, held, tokens, kept,
    VOCAB: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr,
):  # fmt: skip
    """kept [S, 2]: weights above the first number are kept, and of those equal to it tokens up to the second."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    threshold, last = -1, -1  # everything; a row with top_k or top_p loses at least what has no weight
    top = best_of(best, row, BLOCKS, PADDED_BLOCKS)
    if cuts(rows, row) & usable(top, faults, row, BLOCKS, PADDED_BLOCKS):
        index = chosen_floor(rows, row, amounts, BLOCKS, PADDED_BLOCKS)
        count = tl.sum(statistic(amounts, row, 2 * index, BLOCKS, PADDED_BLOCKS), 0).to(tl.int32)
        total = tl.sum(statistic(amounts, row, 2 * FLOORS - 1, BLOCKS, PADDED_BLOCKS), 0)
        held += row * VOCAB
        threshold, ties = 0, total * 0
        top_k = integer(rows, row, TOP_K)
        if (top_k > 0) & (top_k < count):
            threshold = highest_threshold(held, count, top_k, True)
            ties = top_k - amount_from(held, count, threshold + 1, True)
            total = amount_from(held, count, threshold + 1, False) + ties * threshold
        share = top_share(rows, row)
        if share < 1.0:
            needed = tl.maximum(rounded_up(share * total.to(tl.float64)), 1)
            # The nucleus lies within the top k, so at an equal threshold it never takes more of the ties.
            threshold = highest_threshold(held, count, needed, False)
            ties = (needed - amount_from(held, count, threshold + 1, False) + threshold - 1) // threshold
        last = last_tie(held, tokens + row * VOCAB, count, threshold, ties)
    tl.store(kept + 2 * row, threshold)
    tl.store(kept + 2 * row + 1, last)


@jit
def keeps(held, token, threshold, last, least):
    """Whether tokens of these weights are left by all three filters."""
    return (held >= least) & ((held > threshold) | ((held == threshold) & (token <= last)))


@jit
def least_weight(rows, row):
    """The smallest weight that min_p leaves."""
    return rounded_up(real(rows, row, MIN_P).to(tl.float64) * (ONE * 1.0)).to(tl.int32)
