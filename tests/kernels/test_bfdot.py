"""How AArch64's products of bfloat16 round, bit for bit: BFDOT for one row, BFMMLA for more.

Arm defines both alike: products, the sum of two and the total are each rounded to odd (towards zero, the last bit set
if that is not exact), and denormal numbers are zero. The definition here is in fractions. `make test-arm64` compares.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.simd.target import has

from .test_gemm import run, sample

needs_bfdot = pytest.mark.skipif(not has("neon", "bf16"), reason="needs BFDOT")
Rounding = Callable[[Fraction], Fraction]
SMALLEST = Fraction(2) ** -126  # that is normal


def steps_of(value: Fraction) -> tuple[Fraction, Fraction]:
    """The distance of float32 numbers of this size, and how many make the value."""
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()  # of a denominator 2 ** n
    step = Fraction(2) ** (exponent - 23)
    return step, value / step


def to_odd(value: Fraction) -> Fraction:
    if abs(value) < SMALLEST:
        return Fraction(0)
    step, count = steps_of(value)
    whole = abs(count.numerator) // count.denominator
    odd = whole | (whole != abs(count))
    return step * odd * (1 if value > 0 else -1)


def to_nearest(value: Fraction) -> Fraction:
    if abs(value) < SMALLEST:
        return Fraction(0)
    step, count = steps_of(value)
    return step * round(count)


def to_odd_with_denormals(value: Fraction) -> Fraction:
    return to_odd(value * 2**100) / 2**100  # those that occur here keep all their bits


def products(
    x: npt.NDArray[np.float32], w: npt.NDArray[np.float32], total: Rounding = to_odd, inner: Rounding | None = None
) -> npt.NDArray[np.float32]:
    """x @ w.T, with k by pairs; `inner` rounds products and the sums of two, if they are rounded otherwise."""
    inner = inner or total
    rows, channels = (
        [[inner(Fraction(float(value))) for value in row] for row in round_to_bfloat16(m)] for m in (x, w)
    )
    sums = np.zeros((len(x), len(w)), np.float32)
    for m, row in enumerate(rows):
        for n, channel in enumerate(channels):
            found = Fraction(0)
            for k in range(0, len(row), 2):
                pair = inner(inner(row[k] * channel[k]) + inner(row[k + 1] * channel[k + 1]))
                found = total(found + pair)
            sums[m, n] = float(found)
    return sums


def test_rounding_to_odd() -> None:
    one, step = Fraction(1), Fraction(1, 2**23)
    assert to_odd(one) == one
    assert to_odd(one + step / 128) == to_odd(one + step) == to_odd(one + step * 255 / 128) == one + step
    assert to_odd(-one - step / 128) == -one - step
    assert to_odd(one + 2 * step) == one + 2 * step
    assert to_odd(one - step / 256) == one - step / 2
    assert to_odd(SMALLEST * 255 / 256) == 0 != to_odd_with_denormals(SMALLEST * 255 / 256)
    assert to_nearest(one + step * 3 / 2) == one + 2 * step


@needs_bfdot
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_products_round_as_defined(rows: int) -> None:
    x, w = sample(rows, 20, 64, seed=rows)
    x *= np.float32(2) ** np.random.default_rng(rows).integers(-9, 9, x.shape)  # so that sums of two are inexact
    found = run(x, w, "bfloat16")
    np.testing.assert_array_equal(found, products(x, w))
    assert (found != products(x, w, to_nearest)).mean() > 0.5
    assert (found != products(x, w, to_odd, to_nearest)).any()


@needs_bfdot
@pytest.mark.parametrize(("small", "other"), [(2.0**-66, 2.0**-60), (2.0**-126, 2.0**60)], ids=["products", "inputs"])
@pytest.mark.parametrize("rows", [1, 2])
def test_denormal_numbers_are_zero(rows: int, small: float, other: float) -> None:
    x, w = sample(rows, 20, 32, seed=rows)
    x, w = x * np.float32(small), w * np.float32(other)
    found = run(x, w, "bfloat16")
    np.testing.assert_array_equal(found, products(x, w))
    assert found.any()
    assert (found != products(x, w, to_odd_with_denormals)).any()
