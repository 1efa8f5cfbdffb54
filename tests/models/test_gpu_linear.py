"""Every way to store a matrix gives nearly the same product: as near as its number of bits allows."""

from __future__ import annotations

import pytest
import torch

from triolet.models.gpu_arena import Arena, Layout
from triolet.models.gpu_linear import add_linear, linear_workspace, make_linear
from triolet.models.gpu_rehearsal import RehearsalDevice

ROWS, COLUMNS, TOKENS = 72, 192, 3


@pytest.mark.parametrize(
    ("quantize", "tolerance"),
    [
        # Relative to the norm of the product. bfloat16: a rounding of 2^-9 at the end, twice for the sum's own.
        ("none", 2 * 2.0**-9),
        # Steps of max / 127, where the largest of 192 normal numbers is near 3 deviations: 3 / 127 / sqrt(12), twice.
        ("int8", 2 * 3 / 127 / 12**0.5),
        # Steps of (max - min) / 15 within 64 inputs, near 5 deviations: 5 / 15 / sqrt(12), and half as much again.
        ("int4", 1.5 * 5 / 15 / 12**0.5),
    ],
)
def test_products(quantize: str, tolerance: float) -> None:
    device, layout = RehearsalDevice(), Layout()
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(ROWS, COLUMNS, generator=generator).bfloat16()
    add_linear(layout, "matrix", ROWS, COLUMNS, quantize)
    layout.add("x", torch.bfloat16, TOKENS, COLUMNS)
    layout.add("out", torch.bfloat16, TOKENS, ROWS)
    layout.add("space", torch.uint8, max(1, linear_workspace(ROWS, COLUMNS, quantize, TOKENS, device.capability)))
    arena = Arena(device, layout)
    linear = make_linear(device, arena, "matrix", weight, quantize)
    x = torch.randn(TOKENS, COLUMNS, generator=generator).bfloat16()
    device.load(arena["x"], x)
    device.run(lambda: linear(arena["x"], arena["out"], arena["space"]))
    device.synchronize()
    exact = x.double() @ weight.double().T

    def error(found: torch.Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    assert error(arena["out"]) < tolerance
    assert error(arena["out"].roll(1, 0)) > tolerance
    assert error(arena["out"] * (1 + 2 * tolerance)) > tolerance
