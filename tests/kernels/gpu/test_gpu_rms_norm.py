"""RMS norm on the GPU: both kernels against float64, the residual, quantised outputs; planted faults fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.rms_norm import gpu
from triolet.kernels.rms_norm.gpu import RmsNormLaunch, rms_norm
from triolet.kernels.rms_norm.reference import rms_norm_reference

from .mutants import mutated

EPS = 1e-2  # large, so that leaving it out shows
LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# A value between two that e4m3 holds is off by 2^-4 of itself at most, or by half of the smallest step; int8 by half a
# step. Beside that the value itself is a few float32 roundings from exact, which moves a tie.
SLACK = 1e-5


def drawn(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    x, residual = torch.randn(2, rows, size, generator=generator).bfloat16() * 0.2
    return x, residual, torch.rand(size, generator=generator).bfloat16() + 0.5


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rms_norm_reference(x.double().numpy(), weight.double().numpy(), EPS))


def check_plain(size: int) -> None:
    """With residual and bf16 out: no worse than twice the rounding of the exact result, and the residual to the bit."""
    x, residual, weight = drawn(3, size)
    added, out = residual.clone(), torch.empty_like(x)
    rms_norm(x, weight, EPS, out, residual=added, capability=90)
    assert torch.equal(added, x + residual)
    expected = exact(added, weight)
    error = (out.double() - expected).abs()
    assert bool((error <= 2 * (expected.bfloat16().double() - expected).abs().max()).all())


def check_quantised(size: int, dtype: torch.dtype, groups: int) -> None:
    x, _, weight = drawn(2, size)
    out = torch.empty(2, size, dtype=dtype)
    scales = torch.full((2,) if groups == 1 else (2, groups), -1.0)
    rms_norm(x, weight, EPS, out, scales=scales, capability=90)
    expected = exact(x, weight).reshape(2, groups, -1)
    scale = scales.reshape(2, groups, 1).double()
    wanted = expected.abs().amax(-1, keepdim=True) / LIMITS[dtype]
    assert bool(((scale - wanted).abs() <= SLACK * wanted).all())
    steps = expected / scale
    error = (out.reshape(2, groups, -1).double() - steps).abs()
    allowed = torch.full_like(steps, 0.5) if dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    assert bool((error <= allowed + SLACK * LIMITS[dtype]).all())


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row longer than 256 takes the looped kernel."""
    monkeypatch.setattr(gpu, "TABLE", {80: (LaunchRow(None, RmsNormLaunch(256, 4), "a test's"),)})


@pytest.mark.parametrize("size", [64, 100, 1024])
def test_the_row_in_registers(size: int) -> None:
    check_plain(size)


@pytest.mark.usefixtures("looped")
def test_the_looped_row() -> None:
    check_plain(600)
    check_quantised(600, torch.int8, 1)
    check_quantised(5 * GROUP, torch.float8_e4m3fn, 5)


@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.int8, 1), (torch.float8_e4m3fn, 1), (torch.float8_e4m3fn, 3), (torch.int8, 3)]
)
def test_quantised_output(dtype: torch.dtype, groups: int) -> None:
    check_quantised(3 * GROUP, dtype, groups)


def test_a_row_of_zeros_stays_zeros() -> None:
    out, scales = torch.ones(1, 64, dtype=torch.int8), torch.zeros(1)
    rms_norm(torch.zeros(1, 64), torch.ones(64), EPS, out, scales=scales, capability=80)
    assert not out.any()
    assert scales.item() > 0


def test_rows_do_not_depend_on_their_batch() -> None:
    x, _, weight = drawn(4, 100)
    together, alone = torch.empty_like(x), torch.empty_like(x)
    rms_norm(x, weight, EPS, together, capability=90)
    for row in range(4):
        rms_norm(x[row : row + 1], weight, EPS, alone[row : row + 1], capability=90)
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/ SIZE + eps", "/ SIZE"),
        ("        tl.store(at, rounded, mask=inside)\n", ""),
        ("/ SIZE", "/ (TILE_GROUPS * COLUMNS)"),
    ],
    ids=["no eps", "residual not written back", "mean over the padding"],
)
def test_planted_faults_fail(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = mutated(gpu.rms_norm_kernel, old, new, tmp_path)
    monkeypatch.setattr(gpu, "rms_norm_kernel", kernel)
    with pytest.raises(AssertionError):
        check_plain(100)


@pytest.mark.parametrize(
    ("scales", "capability", "message"),
    [
        (None, 90, "scales go with"),
        (torch.zeros(3), 90, r"scales must be contiguous float32 \[2\]"),
        (torch.zeros(2), 80, "needs compute capability 89"),
    ],
)
def test_what_does_not_fit_is_refused(scales: torch.Tensor | None, capability: int, message: str) -> None:
    out = torch.empty(2, 64, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=message):
        rms_norm(torch.zeros(2, 64), torch.ones(64), EPS, out, scales=scales, capability=capability)
