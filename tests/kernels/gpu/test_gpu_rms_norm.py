"""RMSNorm and LayerNorm on the GPU: the suite's checks in both kernels; planted faults fail."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.rms_norm import gpu
from triolet.kernels.rms_norm.gpu import RmsNormLaunch, norm_rows
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_rows import EPS, FORMATS, check_norm, check_norm_in_place

from .cases import MACHINE, table_of

PLAIN, CENTRED = partial(check_norm, 3, 100, "bf16"), partial(check_norm, 3, 100, "layer_norm")
IN_PLACE = partial(check_norm_in_place, 3, 100)


@pytest.mark.parametrize("size", [64, 100, 1024])
def test_the_row_in_registers(size: int) -> None:
    check_norm(3, size, "bf16", MACHINE)


def test_the_looped_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TABLE", table_of(RmsNormLaunch(256, 4)))
    for size, kind in ((600, "bf16"), (600, "int8"), (5 * GROUP, "fp8 groups")):
        check_norm(3, size, kind, MACHINE)


@pytest.mark.parametrize("kind", FORMATS)
def test_quantised_output(kind: str) -> None:
    check_norm(3, 3 * GROUP, kind, MACHINE)


def test_a_row_of_zeros_stays_zeros() -> None:
    out, scales = torch.ones(1, 64, dtype=torch.int8), torch.zeros(1)
    norm_rows(torch.zeros(1, 64), torch.ones(64), EPS, out, scales=scales, capability=80)
    assert not out.any()
    assert scales.item() > 0


@pytest.mark.parametrize("size", [100, 256])
def test_layer_norm(size: int) -> None:
    check_norm(3, size, "layer_norm", MACHINE)


def test_part_of_a_row_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    IN_PLACE(MACHINE)
    monkeypatch.setattr(gpu, "TABLE", table_of(RmsNormLaunch(64, 4)))
    IN_PLACE(MACHINE)
    CENTRED(MACHINE)  # of any length in registers


def test_rows_do_not_depend_on_their_batch() -> None:
    x, weight = torch.randn(4, 100).bfloat16(), torch.rand(100).bfloat16()
    together, alone = torch.empty_like(x), torch.empty_like(x)
    norm_rows(x, weight, EPS, together, capability=90)
    for row in range(4):
        norm_rows(x[row : row + 1], weight, EPS, alone[row : row + 1], capability=90)
    assert torch.equal(together, alone)


FAULTS = {
    "no eps": ("norm_rows_kernel", "/ SIZE + eps", "/ SIZE", PLAIN),
    "mean over the padding": ("norm_rows_kernel", "/ SIZE + eps", "/ (TILE_GROUPS * COLUMNS) + eps", PLAIN),
    "residual not written back": ("row_sum", "        tl.store(at, rounded, mask=inside)\n", "", PLAIN),
    "not centred": ("norm_rows_kernel", "if CENTRED:", "if CENTRED and SIZE == 1:", CENTRED),
    "padding centred": ("norm_rows_kernel", "tl.where(inside, value -", "tl.where(place >= 0, value -", CENTRED),
    "no bias": ("norm_rows_kernel", "if bias is not None:", "if bias is None and bias is not None:", CENTRED),
    "no bias before": ("row_sum", "if x_bias is not None:", "if x_bias is None and x_bias is not None:", IN_PLACE),
    "rows side by side": ("norm_rows_kernel", "out + row * out_stride", "out + row * SIZE", IN_PLACE),
    "rows of x side by side": ("norm_rows_kernel", "x + row * x_stride", "x + row * SIZE", PLAIN),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_fail(name: str) -> None:
    function, old, new, check = FAULTS[name]
    with fault(gpu, function, old, new), pytest.raises(Wrong):
        check(MACHINE)


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
