"""RMSNorm and LayerNorm on the GPU: both kernels against float64, the residual, biases, quantised outputs; planted
faults fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.rms_norm import gpu
from triolet.kernels.rms_norm.gpu import RmsNormLaunch, norm_rows
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
    norm_rows(x, weight, EPS, out, residual=added, capability=90)
    assert torch.equal(added, x + residual)
    expected = exact(added, weight)
    error = (out.double() - expected).abs()
    assert bool((error <= 2 * (expected.bfloat16().double() - expected).abs().max()).all())


def check_quantised(size: int, dtype: torch.dtype, groups: int) -> None:
    x, _, weight = drawn(2, size)
    out = torch.empty(2, size, dtype=dtype)
    scales = torch.full((2,) if groups == 1 else (2, groups), -1.0)
    norm_rows(x, weight, EPS, out, scales=scales, capability=90)
    expected = exact(x, weight).reshape(2, groups, -1)
    scale = scales.reshape(2, groups, 1).double()
    wanted = expected.abs().amax(-1, keepdim=True) / LIMITS[dtype]
    assert bool(((scale - wanted).abs() <= SLACK * wanted).all())
    steps = expected / scale
    error = (out.reshape(2, groups, -1).double() - steps).abs()
    allowed = torch.full_like(steps, 0.5) if dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    assert bool((error <= allowed + SLACK * LIMITS[dtype]).all())


def check_centred(size: int) -> None:
    """LayerNorm with all it may have, of rows that lie apart; and the sum, which it leaves in the residual."""
    x, residual, weight = drawn(3, size)
    x_bias, bias = torch.randn(2, size, generator=torch.Generator().manual_seed(1)).bfloat16()
    apart = torch.zeros(3, 2 * size, dtype=torch.bfloat16)
    apart[:, :size] = x + 1
    added, out = residual.clone(), torch.empty_like(x)
    norm_rows(
        apart[:, :size], weight, EPS, out, residual=added, bias=bias, x_bias=x_bias, centred=True, capability=90
    )  # fmt: skip
    wanted = apart[:, :size].double() + x_bias.double() + residual.double()
    assert bool(((added.double() - wanted).abs() <= wanted.abs() * 2**-8 + 1e-9).all())
    exact = torch.from_numpy(layer_norm_reference(added.double(), weight.double(), bias.double(), EPS))
    assert bool(((out.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all())


def check_in_place(size: int) -> None:
    """Part of wider rows, as q and k are; what lies beside it stays."""
    x, rest, weight = drawn(3, size)
    wide = torch.cat([x, rest], 1)
    x_bias = torch.ones(size, dtype=torch.bfloat16)
    norm_rows(wide[:, :size], weight, EPS, wide[:, :size], x_bias=x_bias, capability=90)
    expected = exact(x.double() + 1, weight)
    assert torch.equal(wide[:, size:], rest)
    assert bool(((wide[:, :size].double() - expected).abs() <= expected.abs() * 2**-8 + 1e-5).all())


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
    norm_rows(torch.zeros(1, 64), torch.ones(64), EPS, out, scales=scales, capability=80)
    assert not out.any()
    assert scales.item() > 0


@pytest.mark.parametrize("size", [100, 256])
def test_layer_norm(size: int) -> None:
    check_centred(size)


def test_part_of_a_row_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_place(100)
    monkeypatch.setattr(gpu, "TABLE", {80: (LaunchRow(None, RmsNormLaunch(64, 4), "a test's"),)})
    check_in_place(100)
    check_centred(100)  # of any length in registers


def test_without_a_weight_it_is_the_sum() -> None:
    x, residual, _ = drawn(3, 100)
    added, out = residual.clone(), x.clone()
    norm_rows(out, None, EPS, out, residual=added, capability=90)
    assert torch.equal(added, x + residual)
    assert torch.equal(out, added)


def test_rows_do_not_depend_on_their_batch() -> None:
    x, _, weight = drawn(4, 100)
    together, alone = torch.empty_like(x), torch.empty_like(x)
    norm_rows(x, weight, EPS, together, capability=90)
    for row in range(4):
        norm_rows(x[row : row + 1], weight, EPS, alone[row : row + 1], capability=90)
    assert torch.equal(together, alone)


FAULTS = {
    "no eps": ("norm_rows_kernel", "/ SIZE + eps", "/ SIZE", check_plain),
    "mean over the padding": ("norm_rows_kernel", "/ SIZE + eps", "/ (TILE_GROUPS * COLUMNS) + eps", check_plain),
    "residual not written back": ("row_sum", "        tl.store(at, rounded, mask=inside)\n", "", check_plain),
    "not centred": ("norm_rows_kernel", "if CENTRED:", "if CENTRED and SIZE == 1:", check_centred),
    "padding centred": ("norm_rows_kernel", "tl.where(inside, value -", "tl.where(place >= 0, value -", check_centred),
    "no bias": ("norm_rows_kernel", "if bias is not None:", "if bias is None and bias is not None:", check_centred),
    "no bias before": (
        "row_sum",
        "if x_bias is not None:",
        "if x_bias is None and x_bias is not None:",
        check_in_place,
    ),
    "rows side by side": ("norm_rows_kernel", "out + row * out_stride", "out + row * SIZE", check_in_place),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_fail(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new, check = FAULTS[name]
    kernel: Any = mutated(getattr(gpu, function), old, new, tmp_path)
    monkeypatch.setattr(gpu, function, kernel)
    with pytest.raises(AssertionError):
        check(100)


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
        norm_rows(torch.zeros(2, 64), torch.ones(64), EPS, out, scales=scales, capability=capability)
