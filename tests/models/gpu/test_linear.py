"""Every way to store a matrix gives nearly the same product: as near as its number of bits allows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from triolet.kernels.quantise.gpu import quantise_rows
from triolet.models.gpu import linear
from triolet.models.gpu.arena import Arena, Layout
from triolet.models.gpu.linear import (
    Activations,
    Linear,
    add_linear,
    fill_linear,
    linear_workspace,
    pack,
    pack_shape,
    placed,
)
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.staging import Staging

TOKENS = 3


def shape_of(quantize: str) -> tuple[int, int]:
    """Rows and columns of a matrix; of blocks of 128 x 128, columns are a multiple."""
    return (300, 256) if quantize == "fp8-block" else (72, 192)


@pytest.mark.parametrize(
    ("quantize", "tolerance"),
    [
        # Relative to the norm of the product. bfloat16: a rounding of 2^-9 at the end, twice for the sum's own.
        ("none", 2 * 2.0**-9),
        # Steps of max / 127, where the largest of 192 normal numbers is near 3 deviations: 3 / 127 / sqrt(12), twice.
        ("int8", 2 * 3 / 127 / 12**0.5),
        # Steps of (max - min) / 15 within 64 inputs, near 5 deviations: 5 / 15 / sqrt(12), and half as much again.
        ("int4", 1.5 * 5 / 15 / 12**0.5),
        # Both operands rounded to 4 significant bits: 2^-4 / sqrt(12) each, together sqrt(2) of it, and twice.
        ("fp8", 2 * 2.0**-4 * 2**0.5 / 12**0.5),
        # Both operands in steps of int8, whose errors together are sqrt(2) of one's.
        ("w8a8", 2 * 3 / 127 / 12**0.5 * 2**0.5),
        ("fp8-block", 2 * 2.0**-4 * 2**0.5 / 12**0.5),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_products(quantize: str, tolerance: float, strict: bool) -> None:
    device, layout = RehearsalDevice(), Layout()
    rows, columns = shape_of(quantize)
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(rows, columns, generator=generator).bfloat16()
    add_linear(layout, "matrix", rows, columns, quantize)
    layout.add("x", torch.bfloat16, TOKENS, columns)
    Activations.add(layout, "read", TOKENS, columns, quantize)
    layout.add("out", torch.bfloat16, TOKENS, rows)
    layout.add("space", torch.uint8, max(1, linear_workspace(rows, columns, quantize, TOKENS, device.capability)))
    arena = Arena(device, layout)
    bits = weight.view(torch.int16).numpy().view(np.uint16)
    with Staging(device) as staging:
        fill_linear(staging, arena, "matrix", (bits[:40], bits[40:]), quantize)
    device.synchronize()
    linear = Linear(placed(pack_shape(*weight.shape, quantize), arena, "matrix"), device.capability)
    x = torch.randn(TOKENS, columns, generator=generator).bfloat16()
    read = Activations.of(arena, "read")
    (read.values if read.scales is None else arena["x"]).copy_(x)
    if read.scales is not None:
        device.run(partial(quantise_rows, arena["x"], read.values, read.scales, capability=device.capability))
    device.run(lambda: linear(read, arena["out"], arena["space"], strict=strict))
    device.synchronize()
    exact = x.double() @ weight.double().T

    def error(found: torch.Tensor) -> float:
        return float(torch.dist(found.double(), exact) / torch.dist(exact, torch.zeros_like(exact)))

    assert error(arena["out"]) < tolerance
    assert error(arena["out"].roll(1, 0)) > tolerance
    assert error(arena["out"] * (1 + 2 * tolerance)) > tolerance


@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8", "fp8-block", "w8a8"])
def test_slabs_of_rows_make_no_difference(quantize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = shape_of(quantize)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5)).bfloat16()
    whole = pack(weight, quantize)
    monkeypatch.setattr(linear, "SLAB_WEIGHTS", 10 * columns)  # seven slabs and a part of one; of blocks three
    cut = pack(weight, quantize)
    for name, tensor in whole.tensors.items():
        assert torch.equal(cut.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert pack_shape(rows, columns, quantize).weight.shape == whole.weight.shape
