"""What prepares a step on the device, and keeps what it drew: right to the bit."""

from __future__ import annotations

from functools import partial

import torch

from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.step_inputs.gpu import copy_blocks, keep_drawn, prepare, scatter
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check
from triolet.loadtest.device.gpu_check import equal, require


def check_step_inputs(tokens: int, machine: GpuMachine) -> Figures:
    """A prompt, a decode row whose id is on the device, and padding."""
    del machine  # one launch for every device
    width, chunks = tokens // PAGE + 2, 3
    rows = torch.randperm(4 * (1 + width)).int().view(4, 1 + width)
    prompt = tokens - 5
    given = torch.full((tokens,), 77, dtype=torch.int32)
    given[prompt] = -1
    out = {name: torch.full((tokens,), 999, dtype=torch.int32) for name in ("ids", "positions", "slots")}
    lengths, tables = torch.full((chunks,), 999).int(), torch.full((chunks, width), 999).int()
    starts = torch.tensor([0, prompt, prompt + 1, prompt + 1]).int()
    first = torch.tensor([10, 70, 0]).int()
    slots = torch.tensor([2, 1, 0]).int()
    prepare(slots, first, starts, given, rows, lengths=lengths, block_tables=tables, **out)
    equal(lengths, torch.tensor([10 + prompt, 71, 0]).int(), "lengths")
    place = torch.cat([torch.arange(10, 10 + prompt), torch.tensor([70])])
    owner = torch.cat([torch.full((prompt,), 2), torch.tensor([1])])
    ids = given[: prompt + 1].clone()
    ids[prompt] = rows[1, 0]
    equal(out["ids"][: prompt + 1], ids, "ids")
    equal(out["positions"][: prompt + 1], place.int(), "positions")
    equal(out["slots"][: prompt + 1], (rows[owner, 1 + place // PAGE] * PAGE + place % PAGE).int(), "slots")
    require(bool((out["slots"][prompt + 1 :] == -1).all()), "padding has slots")
    pages = -(-(10 + prompt) // PAGE)
    equal(tables[0, :pages], rows[2, 1 : 1 + pages], "a block table")
    keep_drawn(torch.tensor([5, 6]).int(), torch.tensor([3, -1]).int(), rows)
    require(int(rows[3, 0]) == 5, "a drawn token was not kept")
    target = torch.zeros(tokens, dtype=torch.int32)
    scatter(given, torch.arange(tokens).flip(0).int(), target)
    equal(target, given.flip(0), "scatter")
    cache = torch.randint(0, 1 << 30, (2, 4, 70), dtype=torch.int32)
    wanted = cache.clone()
    wanted[:, 1] = wanted[:, 3]
    copy_blocks(torch.tensor([3]).int(), torch.tensor([1]).int(), cache)
    equal(cache, wanted, "a copied block")
    return {"tokens": tokens}


def checks(dry: bool) -> list[GpuCase]:
    return [check("step inputs", partial(check_step_inputs, 80 if dry else 2000))]
