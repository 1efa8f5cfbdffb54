"""The kernels around a step: the GPU suite's checks in tiles of two sizes; each planted fault shows."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.step_inputs import gpu
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_step_inputs import SHORT, check_kept, check_prepare

from .cases import MACHINE

TOKENS = 80


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several turns of each program, over the table and over the tokens."""
    monkeypatch.setattr(gpu, "PREPARE_TILE", 16)
    monkeypatch.setattr(gpu, "PREPARE_PROGRAMS", 2)


@pytest.mark.usefixtures("small_tiles")
def test_inputs_are_those_of_the_definition() -> None:
    check_prepare(SHORT, TOKENS, MACHINE)


def test_inputs_in_one_tile() -> None:
    check_prepare(SHORT, TOKENS, MACHINE)


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
def test_a_planted_fault_shows(old: str, new: str) -> None:
    with fault(gpu, "prepare_kernel", old, new), pytest.raises(Wrong):
        check_prepare(SHORT, TOKENS, MACHINE)


def test_tokens_entries_and_blocks_find_their_places() -> None:
    check_kept(MACHINE)


def test_blocks_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous int32"):
        gpu.copy_blocks(torch.tensor([3]), torch.tensor([1]), torch.zeros(3, 4, 70, dtype=torch.int32))
