"""The Gumbel-max draw over what the filters leave, and the choice: steps 5 and 7 of reference.py.

The random words are the CPU's: Philox on (seed, position, token), so the token drawn does not depend on the batch, the
device or how a row is divided. The four words of a Philox counter belong to tokens 64 apart (numbers.token_counter): a
block is read in four parts, each of whole runs of 64 tokens, so that no word is computed for nothing.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_numbers import LOWEST_RANK, NEGATIVE_INFINITY, gumbel, ranked, token_of, value_of, weight
from .gpu_rows import POSITION, SEED, TARGET, best_of, draws, half, integer, long, sharpness, usable
from .gpu_threshold import keeps, least_weight
from .rows import NONE_LEFT, NOT_FINITE, OK

_OK, _NOT_FINITE, _NONE_LEFT = tl.constexpr(OK), tl.constexpr(NOT_FINITE), tl.constexpr(NONE_LEFT)
_DRAWN = tl.constexpr(2)  # one more occurrence in the table of seen tokens, see gpu_penalties.py


@jit
def contenders(logits, token, word, largest, sharp, threshold, last, least, VOCAB: tl.constexpr, FILTERS: tl.constexpr):
    """Tokens ranked by their scores, the lowest rank for what is out of the draw."""
    left = token < VOCAB
    d = (tl.load(logits + token, mask=left, other=NEGATIVE_INFINITY) - largest) * sharp
    if FILTERS:
        left = left & keeps(weight(d), token, threshold, last, least)
    return tl.where(left, ranked(d + gumbel(word), token), LOWEST_RANK)


@jit
def draw_kernel(
    adjusted, rows, best, faults, kept, scores,
    VOCAB: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """A program per row and block: the block's best score, ranked."""
    await_inputs()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = best_of(best, row, BLOCKS, PADDED_BLOCKS)
    if draws(rows, row) & usable(top, faults, row, BLOCKS, PADDED_BLOCKS):
        counter = block * (TILE // 4) + tl.arange(0, TILE // 4)
        a, b, c, d = tl.philox(
            long(rows, row, SEED), counter.to(tl.uint32), half(rows, row, POSITION, 0), half(rows, row, POSITION, 1), 0
        )
        token = counter // 64 * 256 + counter % 64
        logits, largest, sharp = adjusted + row * VOCAB, value_of(top), sharpness(rows, row)
        threshold, last, least = -1, -1, 0
        if FILTERS:
            threshold, last = tl.load(kept + 2 * row), tl.load(kept + 2 * row + 1)
            least = least_weight(rows, row)
        first = contenders(logits, token, a, largest, sharp, threshold, last, least, VOCAB, FILTERS)
        second = contenders(logits, token + 64, b, largest, sharp, threshold, last, least, VOCAB, FILTERS)
        third = contenders(logits, token + 128, c, largest, sharp, threshold, last, least, VOCAB, FILTERS)
        fourth = contenders(logits, token + 192, d, largest, sharp, threshold, last, least, VOCAB, FILTERS)
        high = tl.max(tl.maximum(tl.maximum(first, second), tl.maximum(third, fourth)), 0)
        tl.store(scores + row * BLOCKS + block, high)


@jit
def pick_kernel(
    rows, best, raw_best, faults, scores, seen, seen_slots, ids, status,
    VOCAB: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program per row: its token (0 where it is not usable), its status, and the token's entry among those seen."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    top = best_of(best, row, BLOCKS, PADDED_BLOCKS)
    sound = usable(top, faults, row, BLOCKS, PADDED_BLOCKS)
    target = integer(rows, row, TARGET)
    token = token_of(top)
    if draws(rows, row) & sound:
        token = token_of(best_of(scores, row, BLOCKS, PADDED_BLOCKS))
    token = tl.where(sound, tl.where(target < 0, token, target), 0)
    tl.store(ids + row, token)
    raw_top = best_of(raw_best, row, BLOCKS, PADDED_BLOCKS)
    problem = tl.where(usable(raw_top, faults, row, BLOCKS, PADDED_BLOCKS), _NONE_LEFT, _NOT_FINITE)
    tl.store(status + row, tl.where(sound, _OK, problem).to(tl.uint8))
    slot = tl.load(seen_slots + row).to(tl.int64)
    if (slot >= 0) & (target < 0) & sound:
        entry = seen + slot * VOCAB + token
        tl.store(entry, tl.load(entry) + _DRAWN)
