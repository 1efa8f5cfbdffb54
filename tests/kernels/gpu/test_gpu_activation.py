"""The middle of an MLP on the GPU against float64, plain and quantised; planted faults fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triolet.kernels.activation import gpu
from triolet.kernels.activation.gpu import ActivationLaunch, Clamp, activate
from triolet.kernels.activation.reference import REFERENCES, activation_reference
from triolet.kernels.gpu.table import LaunchRow
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.silu_mul.reference import silu_mul_reference

from .mutants import mutated

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie


@dataclass(frozen=True)
class Form:
    activation: str = "silu"
    gated: bool = True
    biased: bool = False
    clamp: Clamp | None = None

    def drawn(self, size: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """x and a bias of two rows, and the exact result."""
        generator = torch.Generator().manual_seed(size)
        width = (1 + self.gated) * size
        x = torch.randn(2, width, generator=generator).bfloat16() * 3
        bias = torch.randn(width, generator=generator).bfloat16() if self.biased else None
        summed = x.double().numpy() + (0.0 if bias is None else bias.double().numpy())
        if self.clamp is not None:
            limits = self.clamp.limit, self.clamp.slope, self.clamp.offset
            return x, bias, torch.from_numpy(silu_mul_reference(summed[:, :size], summed[:, size:], *limits))
        factor = summed[:, size:] if self.gated else 1.0
        return x, bias, torch.from_numpy(activation_reference(self.activation, summed[:, :size], factor))

    def run(self, x: Tensor, bias: Tensor | None, out: Tensor, scales: Tensor | None = None) -> None:
        activate(
            x, out, activation=self.activation, gated=self.gated, bias=bias, scales=scales, capability=90,
            clamp=self.clamp,
        )  # fmt: skip


SILU = Form()
FORMS = (
    SILU,
    *(Form(name, gated=False) for name in REFERENCES if name != "silu"),
    Form("gelu_tanh"), Form(biased=True), Form("relu2", gated=False, biased=True),
    Form(clamp=Clamp(2.5, 1.7, 1.0)),
)  # fmt: skip


def check_plain(form: Form, size: int) -> None:
    """Off by twice a rounding to bfloat16 at most, and a little where the function itself is a difference of ones."""
    x, bias, expected = form.drawn(size)
    out = torch.full((2, size), torch.nan, dtype=torch.bfloat16)
    form.run(x, bias, out)
    error = (out.double() - expected).abs()
    assert bool((error <= expected.abs() * 2**-8 + 1e-6).all())


def check_quantised(form: Form, size: int, dtype: torch.dtype, groups: int) -> None:
    x, bias, expected = form.drawn(size)
    out = torch.empty(2, size, dtype=dtype)
    scales = torch.full((2,) if groups == 1 else (2, groups), -1.0)
    form.run(x, bias, out, scales)
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
        monkeypatch.setattr(gpu, name, {80: (LaunchRow(None, ActivationLaunch(256, 4), "a test's"),)})


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_plain_output(form: Form) -> None:
    check_plain(form, 40)


def test_a_row_of_several_tiles() -> None:
    check_plain(SILU, 600)


@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.int8, 1), (torch.float8_e4m3fn, 1), (torch.float8_e4m3fn, 3), (torch.int8, 3)]
)
def test_quantised_output(dtype: torch.dtype, groups: int) -> None:
    check_quantised(SILU, 3 * GROUP, dtype, groups)


def test_quantised_output_of_another_form() -> None:
    check_quantised(FORMS[-1], 3 * GROUP, torch.float8_e4m3fn, 1)


FAULTS = [
    ("between", "x + SIZE + place", "x + place", SILU),
    ("between", "bias + SIZE + place", "bias + place", Form(biased=True)),
    ("activated", "tl.exp(-x)", "tl.exp(x)", SILU),
    ("activated", "0.044715", "0.04", Form("gelu_tanh")),
    ("activated", "tl.erf(x * 0.7071067811865476)", "tl.erf(x * 0.7)", Form("gelu", gated=False)),
    ("activated", "result *= result", "result *= 1.0", Form("relu2", gated=False)),
]


@pytest.mark.parametrize(("name", "old", "new", "form"), FAULTS, ids=lambda value: str(value)[:30])
def test_planted_faults_fail(
    name: str, old: str, new: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = mutated(getattr(gpu, name), old, new, tmp_path)
    monkeypatch.setattr(gpu, name, fault)
    with pytest.raises(AssertionError):
        check_plain(form, 40)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \[2, 128\]"):
        SILU.run(torch.zeros(2, 64), None, torch.zeros(2, 64))
    with pytest.raises(ValueError, match="tanh: there are gelu, "):
        Form("tanh").run(torch.zeros(2, 128), None, torch.zeros(2, 64))
    with pytest.raises(ValueError, match="gelu clamped, gated: there are"):
        Form("gelu", clamp=Clamp(1.0, 1.0, 0.0)).run(torch.zeros(2, 128), None, torch.zeros(2, 64))
    with pytest.raises(ValueError, match="silu clamped, without a gate: there are"):
        Form(gated=False, clamp=Clamp(1.0, 1.0, 0.0)).run(torch.zeros(2, 64), None, torch.zeros(2, 64))
    with pytest.raises(ValueError, match=r"bias must be \[128\]"):
        SILU.run(torch.zeros(2, 128), torch.zeros(64), torch.zeros(2, 64))
