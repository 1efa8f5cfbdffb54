"""Rows gathered by ids on the device, to the bit; ids outside the table give zeros; planted faults fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.kernels.embedding import gpu
from triolet.kernels.embedding.gpu import GatherLaunch, gather_rows
from triolet.kernels.gpu.table import LaunchRow

from .mutants import mutated


def check(factor: float = 1.0) -> None:
    table = torch.randn(7, 150, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.tensor([6, 0, -1, 3, 3, 7], dtype=torch.int32)
    out = torch.full((6, 150), torch.nan, dtype=torch.bfloat16)
    gather_rows(ids, table, out, capability=90, factor=factor)
    expected = table[ids.long().clamp(0, 6)]
    expected[[2, 5]] = 0
    if factor != 1.0:
        expected = (expected.float() * factor).bfloat16()
    assert torch.equal(out, expected)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TABLE", {80: (LaunchRow(None, GatherLaunch(64, 4), "a test's"),)})


def test_rows_are_copied() -> None:
    check()
    check(7.3)


@pytest.mark.parametrize(
    ("old", "new"), [("* TILE + ", "* 32 + "), ("table + index", "table + row"), (" * factor)", " + factor)")]
)
def test_planted_faults_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = mutated(gpu.gather_rows_kernel, old, new, tmp_path)
    monkeypatch.setattr(gpu, "gather_rows_kernel", fault)
    with pytest.raises(AssertionError):
        check(7.3)


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="ids must be int32"):
        gather_rows(torch.zeros(1, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(1, 4), capability=90)
