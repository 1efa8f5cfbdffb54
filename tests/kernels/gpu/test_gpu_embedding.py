"""Rows gathered by ids on the device: the suite's check, to the bit, in small tiles; planted faults fail."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.embedding import gpu
from triolet.kernels.embedding.gpu import GatherLaunch, gather_rows
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rows import check_gather

from .cases import MACHINE, table_of


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TABLE", table_of(GatherLaunch(64, 4)))


def test_rows_are_copied() -> None:
    check_gather(6, 7, 150, MACHINE)


@pytest.mark.parametrize(
    ("old", "new"), [("* TILE + ", "* 32 + "), ("table + index", "table + row"), (" * factor)", " + factor)")]
)
def test_planted_faults_fail(old: str, new: str) -> None:
    with fault(gpu, "gather_rows_kernel", old, new), pytest.raises(Wrong):
        check_gather(6, 7, 150, MACHINE)


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="ids must be int32"):
        gather_rows(torch.zeros(1, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(1, 4), capability=90)
