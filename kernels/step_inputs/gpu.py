"""Makes a step's inputs on the device from a few numbers of the host, which does not know the tokens just drawn.

A running sequence has a slot: one row of `slot_rows` [slots, 1 + W], int32. Word 0 is the token drawn last,
the other W are its block table. A given id of -1 means that token, which the host has not read yet.

The launchers check and launch; they allocate nothing. Sizes are those of the caller's buffers, padded to a bucket, so
that a graph can hold the launch.
"""

import torch

from ..gpu.language import await_inputs, cdiv, jit, tl
from ..gpu.table import PAGE_TOKENS

PAGE = tl.constexpr(PAGE_TOKENS)
# Launch sizes. The kernels move a few kilobytes: one size for every device. Compiled for sm_80 and sm_90 with Triton
# 3.6 and 3.9: 18 to 32 registers, no spills. Not measured yet.
SCATTER_BLOCK = 256  # entries per program
COPY_BLOCK = 4096  # words per program: 16 KiB
PREPARE_TILE = 512  # block-table entries, and tokens, of a program at a time: the table of a 32k context
PREPARE_WARPS = 4
PREPARE_PROGRAMS = 8  # of a chunk, at most: most have nothing to do and return after four words


@jit(do_not_specialize=("count",))
def scatter_kernel(values, places, target, count, BLOCK: tl.constexpr):
    """target[places[i]] = values[i]: new blocks, and tokens that the host knows better."""
    await_inputs()
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = tl.load(places + index, mask=inside, other=0)
    tl.store(target + place, tl.load(values + index, mask=inside, other=0), mask=inside)


@jit(do_not_specialize=("tokens", "chunks"))
def prepare_kernel(
    chunk_slots, first_positions, starts, given_ids, slot_rows,
    ids, positions, slots, lengths, block_tables, tokens, chunks, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (chunks + 1, any). The programs of a chunk take turns at tiles of its block table, of which only the entries
    in use are copied, and of its tokens. Behind the last chunk is padding: tokens [starts[chunks], tokens) go nowhere.
    """
    await_inputs()
    chunk = tl.program_id(0)
    mine, stride = tl.program_id(1) * TILE, tl.num_programs(1) * TILE
    begin = tl.load(starts + chunk)
    place = tl.arange(0, TILE)
    if chunk < chunks:
        count = tl.load(starts + chunk + 1) - begin
        first = tl.load(first_positions + chunk)
        length = tl.where(count > 0, first + count, 0)
        tl.store(lengths + chunk, length, mask=mine == 0)
        row = slot_rows + tl.load(chunk_slots + chunk).to(tl.int64) * (WIDTH + 1)
        used = tl.minimum(tl.cdiv(length, PAGE), WIDTH)
        for some in range(mine, used, stride):
            inside = some + place < used
            blocks = tl.load(row + 1 + some + place, mask=inside, other=0)
            tl.store(block_tables + chunk.to(tl.int64) * WIDTH + some + place, blocks, mask=inside)
        drawn = tl.load(row)
        for some in range(mine, count, stride):
            inside = some + place < count
            given = tl.load(given_ids + begin + some + place, mask=inside, other=0)
            position = first + some + place
            block = tl.load(row + 1 + position // PAGE, mask=inside, other=0)
            tl.store(ids + begin + some + place, tl.where(given < 0, drawn, given), mask=inside)
            tl.store(positions + begin + some + place, position, mask=inside)
            tl.store(slots + begin + some + place, block * PAGE + position % PAGE, mask=inside)
    else:
        for some in range(begin + mine, tokens, stride):
            inside = some + place < tokens
            tl.store(ids + some + place, tl.zeros([TILE], tl.int32), mask=inside)
            tl.store(positions + some + place, tl.zeros([TILE], tl.int32), mask=inside)
            tl.store(slots + some + place, tl.full([TILE], -1, tl.int32), mask=inside)


@jit(do_not_specialize=("rows",))
def keep_drawn_kernel(drawn, row_slots, slot_rows, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The drawn token of each row becomes the next one of its slot; a negative slot keeps nothing."""
    await_inputs()
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(row_slots + index, mask=index < rows, other=-1)
    token = tl.load(drawn + index, mask=slot >= 0, other=0)
    tl.store(slot_rows + slot.to(tl.int64) * (WIDTH + 1), token, mask=slot >= 0)


@jit(do_not_specialize=("blocks",))
def copy_blocks_kernel(sources, targets, cache, blocks, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Blocks of a cache [parts, blocks, WORDS] of int32 words. A program copies BLOCK words of one pair in one part.

    No block may be both source and target: the programs run in any order.
    """
    await_inputs()
    pair, part = tl.program_id(0), tl.program_id(1)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = word < WORDS
    source = part.to(tl.int64) * blocks + tl.load(sources + pair)
    target = part.to(tl.int64) * blocks + tl.load(targets + pair)
    value = tl.load(cache + source * WORDS + word, mask=inside, other=0)
    tl.store(cache + target * WORDS + word, value, mask=inside)


def scatter(values: torch.Tensor, places: torch.Tensor, target: torch.Tensor) -> None:
    """target.flatten()[places[i]] = values[i], all int32. Places must differ."""
    _check(values, places, target)
    count = len(values)
    scatter_kernel[(cdiv(count, SCATTER_BLOCK),)](values, places, target, count, BLOCK=SCATTER_BLOCK, num_warps=4)


def prepare(
    chunk_slots: torch.Tensor, first_positions: torch.Tensor, starts: torch.Tensor, given_ids: torch.Tensor,
    slot_rows: torch.Tensor, *, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor,
    lengths: torch.Tensor, block_tables: torch.Tensor,
) -> None:  # fmt: skip
    """Fill ids, positions and slots [T], lengths [C] and block_tables [C, W] from chunks [C] and given ids [T].

    A chunk without tokens is padding and gets length 0; tokens behind the last chunk get slot -1. Of a block table only
    the entries in use are written.
    """
    _check(chunk_slots, first_positions, starts, given_ids, slot_rows, ids, positions, slots, lengths, block_tables)
    (tokens,), (chunks, width) = ids.shape, block_tables.shape
    if len(starts) != chunks + 1 or slot_rows.shape[1] != width + 1 or not len(given_ids) == len(slots) == tokens:
        raise ValueError(
            f"starts {len(starts)}, slot_rows {tuple(slot_rows.shape)}: expected {chunks + 1}, {width + 1}"
        )
    programs = min(PREPARE_PROGRAMS, cdiv(max(width, tokens), PREPARE_TILE))
    prepare_kernel[(chunks + 1, programs)](
        chunk_slots, first_positions, starts, given_ids, slot_rows,
        ids, positions, slots, lengths, block_tables, tokens, chunks,
        WIDTH=width, TILE=PREPARE_TILE, num_warps=PREPARE_WARPS,
    )  # fmt: skip


def keep_drawn(drawn: torch.Tensor, row_slots: torch.Tensor, slot_rows: torch.Tensor) -> None:
    """slot_rows[row_slots[r], 0] = drawn[r], but for negative slots."""
    _check(drawn, row_slots, slot_rows)
    rows = len(drawn)
    keep_drawn_kernel[(cdiv(rows, SCATTER_BLOCK),)](
        drawn, row_slots, slot_rows, rows, WIDTH=slot_rows.shape[1] - 1, BLOCK=SCATTER_BLOCK, num_warps=4
    )


def copy_blocks(sources: torch.Tensor, targets: torch.Tensor, cache: torch.Tensor) -> None:
    """cache[:, targets[i]] = cache[:, sources[i]]; cache int32 [parts, blocks, words], no target being a source."""
    _check(sources, targets, cache)
    parts, blocks, words = cache.shape
    copy_blocks_kernel[(len(sources), parts, cdiv(words, COPY_BLOCK))](
        sources, targets, cache, blocks, WORDS=words, BLOCK=COPY_BLOCK, num_warps=8
    )


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise ValueError(f"expected contiguous int32 tensors, one is {tensor.dtype} {tuple(tensor.stride())}")
