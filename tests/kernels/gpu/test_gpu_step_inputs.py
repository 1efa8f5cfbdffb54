"""The kernels around a step do what a loop over chunks and tokens says, and each planted fault shows."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from triolet.kernels.step_inputs import gpu

from .mutants import mutated

WIDTH, TOKENS, CHUNKS, SLOTS = 66, 80, 4, 5
TILE, PROGRAMS = 16, 2  # several turns of each program, over the table and over the tokens
# (slot, first position, given ids): -1 is the token that was drawn last.
STEP = [(3, 4030, [11] * 66), (0, 7, [-1]), (2, 64 * 65 + 2, [5, 6, -1])]


def slot_rows() -> torch.Tensor:
    return torch.randperm(SLOTS * (1 + WIDTH), generator=torch.Generator().manual_seed(1), dtype=torch.int32).view(
        SLOTS, 1 + WIDTH
    )


def prepared() -> dict[str, torch.Tensor]:
    lengths = [len(ids) for _, _, ids in STEP]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist(), sum(lengths)], dtype=torch.int32)
    given = torch.full((TOKENS,), 77, dtype=torch.int32)
    given[: sum(lengths)] = torch.tensor([token for _, _, ids in STEP for token in ids])
    out = {name: torch.full((TOKENS,), 999, dtype=torch.int32) for name in ("ids", "positions", "slots")}
    out["lengths"] = torch.full((CHUNKS,), 999, dtype=torch.int32)
    out["block_tables"] = torch.full((CHUNKS, WIDTH), 999, dtype=torch.int32)
    first = torch.tensor([first for _, first, _ in STEP] + [0], dtype=torch.int32)
    slots = torch.tensor([slot for slot, _, _ in STEP] + [0], dtype=torch.int32)
    gpu.prepare(slots, first, starts, given, slot_rows(), **out)
    return out


def expected() -> dict[str, torch.Tensor]:
    rows = cast("list[list[int]]", slot_rows().tolist())
    ids, positions, slots, lengths = list[int](), list[int](), list[int](), list[int]()
    tables = torch.full((CHUNKS, WIDTH), 999, dtype=torch.int32)
    for chunk, (slot, first, given) in enumerate(STEP):
        lengths.append(first + len(given))
        used = -(-lengths[-1] // 64)
        tables[chunk, :used] = torch.tensor(rows[slot][1 : 1 + used])
        for place, token in enumerate(given):
            position = first + place
            ids.append(rows[slot][0] if token < 0 else token)
            positions.append(position)
            slots.append(rows[slot][1 + position // 64] * 64 + position % 64)
    padding = TOKENS - len(ids)
    columns = {
        "ids": ids + [0] * padding, "positions": positions + [0] * padding, "slots": slots + [-1] * padding,
        "lengths": [*lengths, 0],
    }  # fmt: skip
    return {name: torch.tensor(column, dtype=torch.int32) for name, column in columns.items()} | {
        "block_tables": tables
    }


def differences() -> list[str]:
    wanted, found = expected(), prepared()
    return [name for name in wanted if not torch.equal(wanted[name], found[name])]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PREPARE_TILE", TILE)
    monkeypatch.setattr(gpu, "PREPARE_PROGRAMS", PROGRAMS)


@pytest.mark.usefixtures("small_tiles")
def test_inputs_are_those_of_the_definition() -> None:
    assert differences() == []


def test_inputs_in_one_tile() -> None:
    assert differences() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.where(given < 0, drawn, given)", "given"),
        ("tl.full([TILE], -1, tl.int32)", "tl.zeros([TILE], tl.int32)"),
        ("row + 1 + position // PAGE", "row + position // PAGE"),
        ("position = first + some + place", "position = first + place"),
        ("tl.where(count > 0, first + count, 0)", "first + count + 1"),
        ("range(begin + mine, tokens", "range(begin + mine + 1, tokens"),
        ("tl.cdiv(length, PAGE), WIDTH", "length // PAGE, WIDTH"),
        ("tl.cdiv(length, PAGE), WIDTH", "WIDTH, WIDTH"),
        ("tl.program_id(1) * TILE", "tl.program_id(1)"),
        ("tl.num_programs(1) * TILE", "2 * tl.num_programs(1) * TILE"),
    ],
)
@pytest.mark.usefixtures("small_tiles")
def test_a_planted_fault_shows(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "prepare_kernel", mutated(gpu.prepare_kernel, old, new, tmp_path))
    assert differences()


def test_drawn_tokens_and_entries_find_their_places() -> None:
    rows = slot_rows()
    before = rows.clone()
    gpu.keep_drawn(torch.tensor([41, 42, 43], dtype=torch.int32), torch.tensor([4, -1, 0], dtype=torch.int32), rows)
    before[4, 0], before[0, 0] = 41, 43
    assert torch.equal(rows, before)
    count = gpu.SCATTER_BLOCK + 3
    target, places = torch.zeros(700, dtype=torch.int32), torch.arange(count, dtype=torch.int32) * 2
    gpu.scatter(torch.arange(count, dtype=torch.int32) + 1, places, target)
    assert torch.equal(target[::2][:count], torch.arange(count, dtype=torch.int32) + 1)
    assert int(target.count_nonzero()) == count


def test_blocks_are_copied_in_every_part() -> None:
    cache = torch.randint(1 << 30, (3, 4, 70), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    before = cache.clone()
    gpu.copy_blocks(torch.tensor([3, 0], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32), cache)
    before[:, [1, 2]] = before[:, [3, 0]]
    assert torch.equal(cache, before)
    with pytest.raises(ValueError, match="contiguous int32"):
        gpu.copy_blocks(torch.tensor([3]), torch.tensor([1]), cache)
