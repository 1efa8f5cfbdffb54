"""silu_mul on the GPU against float64, plain and quantised; planted faults fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.silu_mul import gpu
from triolet.kernels.silu_mul.gpu import SiluMulLaunch, silu_mul
from triolet.kernels.silu_mul.reference import silu_mul_reference

from .mutants import mutated

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie


def drawn(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x, and the exact result."""
    x = torch.randn(rows, 2 * size, generator=torch.Generator().manual_seed(size)).bfloat16() * 3
    gate, up = x.double().numpy().reshape(rows, 2, size).swapaxes(0, 1)
    return x, torch.from_numpy(silu_mul_reference(gate, up))


def check_plain(size: int) -> None:
    x, expected = drawn(2, size)
    out = torch.full((2, size), torch.nan, dtype=torch.bfloat16)
    silu_mul(x, out, capability=90)
    plain = torch.nn.functional.silu(x[:, :size]) * x[:, size:]  # rounds to bf16 twice
    assert bool(((out.double() - expected).abs() <= 2 * (plain.double() - expected).abs().max()).all())


def check_quantised(size: int, dtype: torch.dtype, groups: int) -> None:
    x, expected = drawn(2, size)
    out = torch.empty(2, size, dtype=dtype)
    scales = torch.full((2,) if groups == 1 else (2, groups), -1.0)
    silu_mul(x, out, scales=scales, capability=90)
    expected = expected.reshape(2, groups, -1)
    scale = scales.reshape(2, groups, 1).double()
    wanted = expected.abs().amax(-1, keepdim=True) / LIMITS[dtype]
    assert bool(((scale - wanted).abs() <= SLACK * wanted).all())
    steps = expected / scale
    error = (out.reshape(2, groups, -1).double() - steps).abs()
    allowed = torch.full_like(steps, 0.5) if dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    assert bool((error <= allowed + SLACK * LIMITS[dtype]).all())


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small rows have several tiles and turns."""
    for name in ("TILES", "ROWS"):
        monkeypatch.setattr(gpu, name, {80: (LaunchRow(None, SiluMulLaunch(256, 4), "a test's"),)})


@pytest.mark.parametrize("size", [40, 600])
def test_plain_output(size: int) -> None:
    check_plain(size)


@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.int8, 1), (torch.float8_e4m3fn, 1), (torch.float8_e4m3fn, 3), (torch.int8, 3)]
)
def test_quantised_output(dtype: torch.dtype, groups: int) -> None:
    check_quantised(3 * GROUP, dtype, groups)


@pytest.mark.parametrize(("old", "new"), [("x + SIZE + place", "x + place"), ("-gate", "gate")])
def test_planted_faults_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triolet.kernels.silu_mul import gpu

    fault = mutated(gpu.gated, old, new, tmp_path)
    monkeypatch.setattr(gpu, "gated", fault)
    with pytest.raises(AssertionError):
        check_plain(40)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \[2, 128\]"):
        silu_mul(torch.zeros(2, 64), torch.zeros(2, 64), capability=90)
