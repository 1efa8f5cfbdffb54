"""What prepares a step on the device, and keeps what it drew: right to the bit, by a loop over chunks and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch

from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.step_inputs.gpu import SCATTER_BLOCK, copy_blocks, keep_drawn, prepare, scatter
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check
from triolet.loadtest.device.gpu_check import equal

Tensor = torch.Tensor
SLOTS = 5
# (slot, first position, given ids): -1 is the token that was drawn last. Padding follows.
Chunks = Sequence[tuple[int, int, Sequence[int]]]
SHORT: Chunks = ((3, 4030, (11,) * 66), (0, 7, (-1,)), (2, 64 * 65 + 2, (5, 6, -1)))
LONG: Chunks = ((3, 10, (11,) * 1990), (0, 70, (-1,)))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected(step: Chunks, tokens: int, chunks: int, slot_rows: Tensor) -> dict[str, Tensor]:
    """By the definition; 999 where a block table says nothing."""
    rows = cast("list[list[int]]", slot_rows.tolist())
    found: dict[str, list[int]] = {"ids": [], "positions": [], "slots": [], "lengths": []}
    tables = torch.full((chunks, slot_rows.shape[1] - 1), 999).int()
    for chunk, (slot, first, given) in enumerate(step):
        length = first + len(given)
        found["lengths"].append(length)
        tables[chunk, : -(-length // PAGE)] = ints(*rows[slot][1 : 1 - (-length // PAGE)])
        found["ids"] += [rows[slot][0] if token < 0 else token for token in given]
        found["positions"] += range(first, length)
        found["slots"] += [rows[slot][1 + place // PAGE] * PAGE + place % PAGE for place in range(first, length)]
    for name, column in found.items():
        size = chunks if name == "lengths" else tokens
        column += [-1 if name == "slots" else 0] * (size - len(column))
    return {name: ints(*column) for name, column in found.items()} | {"block_tables": tables}


def check_prepare(step: Chunks, tokens: int, _machine: GpuMachine) -> Figures:
    """Two chunks and some tokens are padding."""
    slots, first, given = zip(*step, (0, 0, ()), (0, 0, ()), strict=True)
    counts = [len(ids) for ids in given]
    width = max(-(-(place + count) // PAGE) for place, count in zip(first, counts, strict=True))
    slot_rows = torch.randperm(SLOTS * (1 + width)).int().view(SLOTS, 1 + width)
    ids = ints(*(token for chunk in given for token in chunk), *[77] * (tokens - sum(counts)))
    wanted = expected(step, tokens, len(slots), slot_rows)
    out = {name: torch.full_like(tensor, 999) for name, tensor in wanted.items()}
    starts = ints(0, *counts).cumsum(0).int()
    prepare(ints(*slots), ints(*first), starts, ids, slot_rows, **out)
    for name, tensor in wanted.items():
        equal(out[name], tensor, name)
    return {"tokens": tokens}


def check_kept(_machine: GpuMachine) -> Figures:
    """Drawn tokens, entries of a list and copied blocks find their places, and nothing else changes."""
    rows = torch.randperm(SLOTS * 67).int().view(SLOTS, 67)
    wanted = rows.clone()
    wanted[4, 0], wanted[0, 0] = 41, 43
    keep_drawn(ints(41, 42, 43), ints(4, -1, 0), rows)
    equal(rows, wanted, "a drawn token")
    count = SCATTER_BLOCK + 3
    values, target = torch.arange(1, count + 1).int(), torch.zeros(2 * count + 50).int()
    scattered = target.clone()
    scattered[: 2 * count : 2] = values
    scatter(values, torch.arange(count).int() * 2, target)
    equal(target, scattered, "an entry of a list")
    cache = torch.randint(0, 1 << 30, (3, 4, 70), dtype=torch.int32)
    copied = cache.clone()
    copied[:, [1, 2]] = copied[:, [3, 0]]
    copy_blocks(ints(3, 0), ints(1, 2), cache)
    equal(cache, copied, "a copied block")
    return {"entries": count}


def checks(dry: bool) -> list[GpuCase]:
    step = partial(check_prepare, SHORT, 80) if dry else partial(check_prepare, LONG, 2000)
    return [check("step inputs", step), check("step inputs kept", check_kept)]
