"""Log probabilities of the chosen token and of the n most probable, of the raw logits, for the rows that ask.

A block ranks its own n best, one maximum after the other; the n best of a row are among those of its blocks. The
normaliser is a sum of integers. Its logarithm is float32 here and float64 on the CPU: a log probability may differ from
the CPU's by 1e-6 (4 roundings of float32 at the logarithm of a vocabulary, which is below 16). Tokens and order do not.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_numbers import (
    LOWEST_RANK,
    NEGATIVE_INFINITY,
    ONE,
    logarithm,
    ranked,
    token_of,
    value_of,
    weight,
)
from .gpu_rows import TOP, best_of, integer, usable
from .rows import MAX_TOP

_MAX_TOP = tl.constexpr(MAX_TOP)


@jit
def survey_kernel(
    logits, rows, raw_best, ids, totals, leaders, ahead, logits_stride,
    VOCAB: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr,
):  # fmt: skip
    """A program per row and block: the sum of its weights, its best tokens [S, BLOCKS, MAX_TOP], and how many of its
    tokens come before the row's own.
    """
    await_inputs()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    wanted = integer(rows, row, TOP)
    if wanted >= 0:
        token = block * TILE + tl.arange(0, TILE)
        raw = tl.load(logits + row * logits_stride + token, mask=token < VOCAB, other=NEGATIVE_INFINITY).to(tl.float32)
        largest = value_of(best_of(raw_best, row, BLOCKS, PADDED_BLOCKS))
        if tl.abs(largest) < float("inf"):  # else the row is not usable, and inf - inf not a number
            place = row * BLOCKS + block
            tl.store(totals + place, tl.sum(weight(raw - largest).to(tl.int64), 0))
            ranks = tl.where(token < VOCAB, ranked(raw, token), LOWEST_RANK)
            drawn = tl.load(ids + row)
            own = ranked(tl.load(logits + row * logits_stride + drawn).to(tl.float32), drawn)
            tl.store(ahead + place, tl.sum((ranks > own).to(tl.int32), 0))
            for index in range(wanted):
                leader = tl.max(ranks, 0)
                tl.store(leaders + place * _MAX_TOP + index, leader)
                ranks = tl.where(ranks == leader, LOWEST_RANK, ranks)


@jit
def report_kernel(
    logits, rows, best, raw_best, faults, ids, totals, leaders, ahead,
    logprobs, ranks_of_drawn, top_ids, top_logprobs, logits_stride,
    VOCAB: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr, PADDED_LEADERS: tl.constexpr,
):  # fmt: skip
    """A program per row: the log probability of its token and its rank, and its best tokens [S, MAX_TOP] with theirs,
    most probable first.
    """
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    wanted = integer(rows, row, TOP)
    sound = usable(best_of(best, row, BLOCKS, PADDED_BLOCKS), faults, row, BLOCKS, PADDED_BLOCKS)
    if (wanted >= 0) & sound:
        largest = value_of(best_of(raw_best, row, BLOCKS, PADDED_BLOCKS))
        block = tl.arange(0, PADDED_BLOCKS)
        total = tl.sum(tl.load(totals + row * BLOCKS + block, mask=block < BLOCKS, other=0), 0)
        normaliser = logarithm(total.to(tl.float32) * (1.0 / ONE))
        chosen = tl.load(logits + row * logits_stride + tl.load(ids + row)).to(tl.float32)
        tl.store(logprobs + row, (chosen - largest) - normaliser)
        before = tl.load(ahead + row * BLOCKS + block, mask=block < BLOCKS, other=0)
        tl.store(ranks_of_drawn + row, 1 + tl.sum(before, 0))
        entry = tl.arange(0, PADDED_LEADERS)
        asked = (entry < BLOCKS * _MAX_TOP) & (entry % _MAX_TOP < wanted)
        ranks = tl.load(leaders + row * (BLOCKS * _MAX_TOP) + entry, mask=asked, other=LOWEST_RANK)
        for index in range(tl.minimum(wanted, VOCAB)):
            leader = tl.max(ranks, 0)
            tl.store(top_ids + row * _MAX_TOP + index, token_of(leader))
            tl.store(top_logprobs + row * _MAX_TOP + index, (value_of(leader) - largest) - normaliser)
            ranks = tl.where(ranks == leader, LOWEST_RANK, ranks)
