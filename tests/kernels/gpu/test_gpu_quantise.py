"""Rows quantised on the GPU: the suite's check in small tiles; planted faults fail."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.quantise import gpu
from triolet.kernels.quantise.gpu import QuantiseLaunch, quantise_rows
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rows import FORMATS, check_quantise

from .cases import MACHINE, table_of


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TABLE", table_of(QuantiseLaunch(128, 4)))


@pytest.mark.parametrize("kind", FORMATS)
def test_rows(kind: str) -> None:
    check_quantise(3, 384 if kind.endswith("groups") else 300, kind, MACHINE)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("fp8", "largest = tl.maximum(largest, tl.abs(value))", "largest = tl.abs(value)"),  # the last turn's alone
        ("fp8", "tl.abs(value)", "value"),
        ("fp8", "tl.store(scales + row + tl.arange(0, 1)", "tl.store(scales + tl.arange(0, 1)"),
        ("fp8 groups", "start // COLUMNS", "0"),
        ("fp8 groups", "scales + row * GROUPS", "scales + row"),
        ("fp8 groups", "out + row * SIZE", "out + row"),
    ],
)
def test_planted_faults_fail(kind: str, old: str, new: str) -> None:
    kernel = "quantise_groups_kernel" if kind.endswith("groups") else "quantise_rows_kernel"
    with fault(gpu, kernel, old, new), pytest.raises(Wrong):
        check_quantise(3, 384, kind, MACHINE)


def test_what_does_not_fit_is_refused() -> None:
    x, out = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(2, 256, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="one shape"):
        quantise_rows(x[:1], out, torch.zeros(2), capability=90)
    with pytest.raises(ValueError, match=r"or \[2, 256 / 128\]"):
        quantise_rows(x, out, torch.zeros(2, 4), capability=90)
    with pytest.raises(ValueError, match="capability"):
        quantise_rows(x, out, torch.zeros(2), capability=80)
