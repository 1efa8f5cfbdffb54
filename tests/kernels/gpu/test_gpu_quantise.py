"""Rows quantised on the GPU against float64; planted faults fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.quantise import gpu
from triolet.kernels.quantise.gpu import QuantiseLaunch, quantise_rows

from .mutants import mutated

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small row takes several turns."""
    monkeypatch.setattr(gpu, "TABLE", {80: (LaunchRow(None, QuantiseLaunch(128, 4), "a test's"),)})


def check(dtype: torch.dtype) -> None:
    """Each value within half a step, each row's largest on its type's limit, a row of zeros still zeros."""
    rows, size = 3, 300
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(5)).bfloat16()
    x[0, 250:] *= 9  # the largest lies in the last turn
    x[1] = 0
    out, scales = torch.empty(rows, size, dtype=dtype), torch.full((rows,), torch.nan)
    quantise_rows(x, out, scales, capability=90)
    wanted = x.double().abs().amax(1) / LIMITS[dtype]
    assert bool(((scales.double() - wanted).abs() <= SLACK * wanted + 1e-20).all())
    steps = x.double() / scales.double()[:, None]
    allowed = torch.full_like(steps, 0.5) if dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    assert bool(((out.double() - steps).abs() <= allowed + SLACK * LIMITS[dtype]).all())


@pytest.mark.parametrize("dtype", LIMITS)
def test_rows(dtype: torch.dtype) -> None:
    check(dtype)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("largest = tl.maximum(largest, tl.abs(value))", "largest = tl.abs(value)"),  # the last turn's alone
        ("tl.abs(value)", "value"),
        ("tl.store(scales + row + tl.arange(0, 1)", "tl.store(scales + tl.arange(0, 1)"),
    ],
)
def test_planted_faults_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triolet.kernels.quantise import gpu

    monkeypatch.setattr(gpu, "quantise_rows_kernel", mutated(gpu.quantise_rows_kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check(torch.float8_e4m3fn)


def check_groups(dtype: torch.dtype) -> None:
    """Each group of 128 values is a row of its own."""
    rows, groups = 3, 3
    x = torch.randn(rows, groups * 128, generator=torch.Generator().manual_seed(6)).bfloat16()
    x[1, 128:256] *= 9
    out, scales = torch.empty(x.shape, dtype=dtype), torch.full((rows, groups), torch.nan)
    quantise_rows(x, out, scales, capability=90)
    alone, each = torch.empty(rows * groups, 128, dtype=dtype), torch.empty(rows * groups)
    quantise_rows(x.view(-1, 128), alone, each, capability=90)
    assert torch.equal(out.view(torch.uint8), alone.view(x.shape).view(torch.uint8))
    assert torch.equal(scales, each.view(rows, groups))


@pytest.mark.parametrize("dtype", LIMITS)
def test_groups_of_a_row(dtype: torch.dtype) -> None:
    check_groups(dtype)


@pytest.mark.parametrize(
    ("old", "new"),
    [("start // COLUMNS", "0"), ("scales + row * GROUPS", "scales + row"), ("out + row * SIZE", "out + row")],
)
def test_planted_faults_in_groups_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "quantise_groups_kernel", mutated(gpu.quantise_groups_kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check_groups(torch.float8_e4m3fn)


def test_what_does_not_fit_is_refused() -> None:
    x, out = torch.zeros(2, 256, dtype=torch.bfloat16), torch.zeros(2, 256, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="one shape"):
        quantise_rows(x[:1], out, torch.zeros(2), capability=90)
    with pytest.raises(ValueError, match=r"or \[2, 256 / 128\]"):
        quantise_rows(x, out, torch.zeros(2, 4), capability=90)
    with pytest.raises(ValueError, match="capability"):
        quantise_rows(x, out, torch.zeros(2), capability=80)
