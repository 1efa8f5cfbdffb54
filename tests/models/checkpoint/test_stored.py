"""Stored matrices: what codes stand for, written out weight by weight; slices and orders of rows."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.loadtest.device.random_stored import LAYOUTS, Held, held
from triolet.models.checkpoint.stored import float_parts, same_values


def number(bits: int, kind: str) -> float:
    """A float16 or bfloat16 by its definition."""
    if kind == "float16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16).view(np.float32))


def weight(matrix: Held, row: int, place: int) -> float:
    """One weight, by the formula, in Python's numbers."""
    layout, found = matrix.layout, matrix.codes(row, row + 1)
    group, upper = place // layout.group, place // 256
    scale = float(found.scales[0, group])
    if layout.scales == "two-level":
        assert found.upper_scales is not None
        scale *= number(int(found.upper_scales[0, upper]), "float16")
    elif layout.scales != "float32":
        scale = number(int(found.scales[0, group]), layout.scales)
    code = int(found.codes[0, place])
    if found.minima is None:
        return scale * (code - {4: 8, 6: 32, 8: 128}[layout.bits])
    least = float(found.minima[0, group])
    if layout.minima == "zeros":
        return scale * (code - least)
    if layout.minima == "float16":
        return scale * code - number(int(found.minima[0, group]), "float16")
    assert found.upper_minima is not None
    return scale * code - least * number(int(found.upper_minima[0, upper]), "float16")


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_the_formula(name: str) -> None:
    matrix = held(LAYOUTS[name])
    rows = matrix.rows(3, 6)
    expected = np.array([[weight(matrix, row, place) for place in range(512)] for row in range(3, 6)])
    largest = np.abs(expected).max()
    assert np.abs(rows - expected).max() <= 2**-23 * largest  # two roundings to float32
    one_off = held(LAYOUTS[name], seed=1).rows(3, 6)
    assert np.abs(one_off - expected).max() > 2**-23 * largest


def test_slices_and_orders_are_the_rows_they_name() -> None:
    matrix = held(LAYOUTS["Q4_K"])
    whole = matrix.rows(0, 9)
    order = np.array([3, 1, 2, 8, 7, 0])
    np.testing.assert_array_equal(matrix.ordered(order).rows(0, 6), whole[order])
    np.testing.assert_array_equal(matrix[2:7].rows(1, 3), whole[3:5])
    np.testing.assert_array_equal(matrix[2:7].ordered(np.array([4, 0])).rows(0, 2), whole[[6, 2]])
    assert matrix[5:5].rows(0, 0).shape == (0, 512)
    with pytest.raises(ValueError, match="a step of 2"):
        matrix[::2]


def test_matrices_are_compared_by_their_values() -> None:
    matrix = held(LAYOUTS["Q8_0"])
    whole = np.concatenate(list(float_parts(matrix)))
    assert same_values(matrix, whole)
    assert not same_values(matrix, whole[:5])
    whole[8, 511] += 1e-3
    assert not same_values(whole, matrix)
