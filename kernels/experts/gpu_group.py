"""Groups the choices of a step by expert, on the device: what the grouped product reads to know its rows.

An entry is a place in `chosen` [T, chosen]: a token and one of its experts. The entries of an expert ascend, in blocks
of BLOCK_M, the last one filled up with the number of entries, which no entry has. So a block has one expert.

    plan        int32: entries [blocks, BLOCK_M]; the expert of each block [blocks]; how many blocks are in use [1]

`blocks` is the most that so many entries can need, so the grids and addresses of a captured graph serve any choice. A
program makes the list of its expert and counts all experts for itself, to know where it begins: nothing is exchanged
between programs, nothing added up in an order that varies, and one launch is enough.
"""

from __future__ import annotations

import torch

from ..gpu.language import await_inputs, jit, next_power_of_2, tl
from ..gpu.operand import need

Tensor = torch.Tensor
TILE, LARGE_TILE, LARGE = 1024, 4096, 8192  # entries at a time: with LARGE entries or more, the larger tile
WARPS = 4  # compiled without spills; not measured


@jit(do_not_specialize=["count", "blocks"])
def group_kernel(
    chosen, plan, count, blocks,
    EXPERTS: tl.constexpr, BINS: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (experts). What chose expert EXPERTS is padding and gets no entry."""
    await_inputs()
    expert = tl.program_id(0)
    place, number = tl.arange(0, TILE), tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for some in range(0, count, TILE):
        counts += tl.histogram(tl.load(chosen + some + place, mask=some + place < count, other=EXPERTS), BINS)
    needed = tl.where(number < EXPERTS, (counts + BLOCK_M - 1) // BLOCK_M, 0)
    first = tl.sum(tl.where(number < expert, needed, 0), 0)
    own = tl.sum(tl.where(number == expert, needed, 0), 0)
    experts = plan + blocks * BLOCK_M
    tl.store(experts + blocks, tl.sum(needed, 0), mask=expert == 0)
    if own > 0:
        for some in range(0, own, TILE):
            tl.store(experts + first + some + place, expert, mask=some + place < own)
        entries, written = plan + first * BLOCK_M, 0
        for some in range(0, count, TILE):
            same = tl.load(chosen + some + place, mask=some + place < count, other=EXPERTS) == expert
            ones = same.to(tl.int32)
            tl.store(entries + written + tl.cumsum(ones, 0) - 1, some + place, mask=same)
            written += tl.sum(ones, 0)
        rest = written + tl.arange(0, BLOCK_M)
        tl.store(entries + rest, count, mask=rest < own * BLOCK_M)


def most_blocks(entries: int, experts: int, block_m: int) -> int:
    """How many blocks so many entries can need: each expert in use may leave all but a row of its last block empty."""
    return (entries + min(entries, experts) * (block_m - 1)) // block_m


def plan_words(entries: int, experts: int, block_m: int) -> int:
    return most_blocks(entries, experts, block_m) * (block_m + 1) + 1


def group(chosen: Tensor, plan: Tensor, *, experts: int, block_m: int) -> None:
    """Fill the front of `plan`; it must have `plan_words`."""
    need("chosen", chosen, torch.int32, *chosen.shape)
    count = chosen.numel()
    blocks, words = most_blocks(count, experts, block_m), plan_words(count, experts, block_m)
    if plan.numel() < words or plan.dtype != torch.int32:
        raise ValueError(f"the plan holds {plan.numel()} x {plan.dtype}; {count} entries need {words} of int32")
    group_kernel[(experts,)](
        chosen, plan, count, blocks,
        EXPERTS=experts, BINS=next_power_of_2(experts + 1), BLOCK_M=block_m,
        TILE=TILE if count < LARGE else LARGE_TILE, num_warps=WARPS,
    )  # fmt: skip
