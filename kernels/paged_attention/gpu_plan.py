"""Shares decode work evenly: every program gets the same number of pages, wherever sequences begin and end.

The pages that the decode rows of a batch see, laid end to end, are one list; program p takes pages [p * share,
(p + 1) * share) of it. So a long sequence spreads over all programs and a short one joins its neighbours. Planned on
the device, once a step for each window, and read by every layer: nobody waits for the host, and the grid is static.

Where a sequence is cut decides the order of its sums. Strict plans cut each sequence by its own length alone, into at
most `SPLITS` parts, and a program takes the parts that begin among its pages.

Plan, int32: header [share, pages]; at HEADER one record (sequence, first page of the list, pages) for each decode row;
then, after 4 * sequences words, the row in which each program begins; then, for each kv head and row, a counter of its
parts that are done.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_tile import PAGE

HEADER = tl.constexpr(16)
RECORD = tl.constexpr(4)
PROGRAMS_AT_ONCE = tl.constexpr(16)


@jit(do_not_specialize=("sequences", "window"))
def plan_kernel(
    starts, lengths, plan, sequences, window,
    PROGRAMS: tl.constexpr, LEAST_SHARE: tl.constexpr, BLOCK: tl.constexpr, WINDOWED: tl.constexpr,
    KV_HEADS: tl.constexpr,
):  # fmt: skip
    """One program. Chunks of one token are decode rows; the others are prefill's, or padding."""
    await_inputs()
    sequence = tl.arange(0, BLOCK)
    real = sequence < sequences
    begin = tl.load(starts + sequence, mask=real, other=0)
    is_row = real & (tl.load(starts + sequence + 1, mask=real, other=0) - begin == 1)
    length = tl.load(lengths + sequence, mask=real, other=0)
    pages = tl.cdiv(length, PAGE)
    if WINDOWED:
        pages -= tl.maximum(length - window, 0) // PAGE
    pages = tl.where(is_row, pages, 0)
    through = tl.cumsum(pages, 0)
    row = tl.cumsum(is_row.to(tl.int32), 0) - 1
    total = tl.sum(pages, 0)
    share = tl.maximum(tl.cdiv(total, PROGRAMS), LEAST_SHARE)
    tl.store(plan, share)
    tl.store(plan + 1, total)
    record = plan + HEADER + RECORD * row
    tl.store(record, sequence, mask=is_row)
    tl.store(record + 1, through - pages, mask=is_row)
    tl.store(record + 2, pages, mask=is_row)
    first_rows = plan + HEADER + RECORD * sequences
    for some in range(0, PROGRAMS, PROGRAMS_AT_ONCE):
        program = some + tl.arange(0, PROGRAMS_AT_ONCE)
        over = is_row[None, :] & (through[None, :] <= (program * share)[:, None])
        tl.store(first_rows + program, tl.sum(over.to(tl.int32), 1), mask=program < PROGRAMS)
    for kv_head in range(KV_HEADS):
        tl.store(first_rows + PROGRAMS + kv_head * sequences + sequence, 0, mask=real)


@jit
def split_pages(pages, SPLITS: tl.constexpr, LEAST_SHARE: tl.constexpr):
    """Pages of one part of a strictly cut sequence."""
    return tl.maximum(tl.cdiv(pages, SPLITS), LEAST_SHARE)


@jit
def parts_of(row, first, pages, share, STRICT: tl.constexpr, SPLITS: tl.constexpr, LEAST_SHARE: tl.constexpr):
    """(slot of its first partial result, how many) of a decode row. Slots of different rows never meet: from one
    part to the next in the list, the row or the program goes up, so row + program does.
    """
    if STRICT:
        slot, parts = row * SPLITS, tl.cdiv(pages, split_pages(pages, SPLITS, LEAST_SHARE))
    else:
        program = first // share
        slot, parts = row + program, (first + pages - 1) // share - program + 1
    return slot, parts
