"""The middle of an MLP on the GPU: the suite's checks in small tiles; planted faults fail."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.activation import gpu
from triolet.kernels.activation.gpu import ActivationLaunch, Clamp, activate
from triolet.kernels.activation.reference import REFERENCES
from triolet.kernels.quantise.gpu import GROUP
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rows import FORMATS, SILU, Middle, check_activation

from .cases import MACHINE, table_of

CLAMPED = Middle(clamp=Clamp(2.5, 1.7, 1.0))
MIDDLES = (
    SILU, *(Middle(name, gated=False) for name in REFERENCES if name != "silu"),
    Middle("gelu_tanh"), Middle(biased=True), Middle("relu2", gated=False, biased=True), CLAMPED,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TILES", "ROWS"):
        monkeypatch.setattr(gpu, name, table_of(ActivationLaunch(256, 4)))


@pytest.mark.parametrize("middle", MIDDLES, ids=str)
def test_plain_output(middle: Middle) -> None:
    check_activation(2, 40, "bf16", MACHINE, middle)


def test_a_row_of_several_tiles() -> None:
    check_activation(2, 600, "bf16", MACHINE)


@pytest.mark.parametrize("kind", FORMATS)
def test_quantised_output(kind: str) -> None:
    check_activation(2, 3 * GROUP, kind, MACHINE)


def test_quantised_output_of_another_form() -> None:
    check_activation(2, 3 * GROUP, "fp8", MACHINE, CLAMPED)


@pytest.mark.parametrize(
    ("name", "old", "new", "middle"),
    [
        ("between", "x + SIZE + place", "x + place", SILU),
        ("between", "bias + SIZE + place", "bias + place", Middle(biased=True)),
        ("activated", "tl.exp(-x)", "tl.exp(x)", SILU),
        ("activated", "0.044715", "0.04", Middle("gelu_tanh")),
        ("activated", "tl.erf(x * 0.7071067811865476)", "tl.erf(x * 0.7)", Middle("gelu", gated=False)),
        ("activated", "result *= result", "result *= 1.0", Middle("relu2", gated=False)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_planted_faults_fail(name: str, old: str, new: str, middle: Middle) -> None:
    with fault(gpu, name, old, new), pytest.raises(Wrong):
        check_activation(2, 40, "bf16", MACHINE, middle)


@pytest.mark.parametrize(
    ("middle", "width", "bias", "message"),
    [
        (SILU, 64, None, r"x must be \[2, 128\]"),
        (Middle("tanh"), 128, None, "tanh: there are gelu, "),
        (Middle("gelu", clamp=Clamp(1.0, 1.0, 0.0)), 128, None, "gelu clamped, gated: there are"),
        (Middle(gated=False, clamp=Clamp(1.0, 1.0, 0.0)), 64, None, "silu clamped, without a gate: there are"),
        (SILU, 128, torch.zeros(64), r"bias must be \[128\]"),
    ],
)
def test_what_does_not_fit_is_refused(middle: Middle, width: int, bias: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        activate(
            torch.zeros(2, width), torch.zeros(2, 64), activation=middle.name, gated=middle.gated, clamp=middle.clamp,
            bias=bias, capability=90,
        )  # fmt: skip
