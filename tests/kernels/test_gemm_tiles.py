"""The GEMM by a tile unit: an emulated one equals the vector tile, and for bfloat16 the definition, bit for bit.

The real one, where there is one, must equal both. Elsewhere its machine code is looked at.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.kernels.gemm import cpu
from triolet.kernels.gemm.pack import padded
from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.simd.amx import tiles_permitted
from triolet.kernels.simd.dot import codes_stay_unsigned, multiplies_pairs
from triolet.kernels.simd.formats import WeightFormat

from .test_gemm import FloatArray, run, sample
from .tile_units import EmulatedTiles, gemm_with, real_machine_code, rebuilt

pytestmark = pytest.mark.skipif(not codes_stay_unsigned(), reason="the vector tile's corrections are others here")
Multiply = Callable[..., None]


FORMATS: list[WeightFormat] = ["int8", "int4", "int4-128"]
permitted, faulty = np.ones(1, np.int64), np.zeros(1, np.int64)


@pytest.fixture(autouse=True)
def usual_unit() -> Iterator[None]:
    yield
    permitted[0], faulty[0] = 1, 0


@pytest.fixture(scope="module")
def by_tiles() -> Multiply:
    return gemm_with(EmulatedTiles(faulty.ctypes.data), permitted.ctypes.data)


@pytest.fixture(scope="module")
def by_vectors() -> Multiply:
    multiply: Multiply = rebuilt(cpu.gemm, TILES_HERE=False) if cpu.TILES_HERE else cpu.gemm
    return multiply


@settings(max_examples=40, deadline=None)  # the first compiles
@given(
    weight_format=st.sampled_from(FORMATS), rows=st.integers(16, 70), channels=st.integers(1, 300),
    k=st.integers(33, 400), threads=st.integers(1, 5), wide=st.sets(st.integers(0, 69)), add=st.booleans(),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_tiles_equal_vectors(
    by_tiles: Multiply, by_vectors: Multiply, weight_format: WeightFormat, rows: int, channels: int, k: int,
    threads: int, wide: set[int], add: bool, seed: int,
) -> None:  # fmt: skip
    x, w = sample(rows, channels, k, seed)
    x[[row for row in wide if row < rows], k // 2] *= 300
    residual = sample(rows, 1, channels, seed)[0] if add else None
    expected = run(x, w, weight_format, residual=residual, multiply=by_vectors)
    found = run(x, w, weight_format, threads=threads, residual=residual, multiply=by_tiles)
    np.testing.assert_array_equal(found, expected)
    if cpu.TILES_HERE:
        np.testing.assert_array_equal(run(x, w, weight_format, threads=threads, residual=residual), expected)


def pairs_by_definition(x: FloatArray, w: FloatArray) -> FloatArray:
    """x @ w.T of bfloat16 values, as Intel's manual defines TDPBF16PS for every 32 inputs.

    Products of two and sums with a float32 are exact in float64 unless they are 2**29 times apart, so that rounding
    them to float32 is what a fused multiply-add does.
    """
    missing = ((0, 0), (0, padded(x.shape[1], 32) - x.shape[1]))
    wide_x, wide_w = np.pad(x, missing).astype(np.float64), np.pad(w, missing).astype(np.float64)
    total = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, wide_x.shape[1], 32):
        sums = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(start, start + 32):
            sums[k % 2] = (sums[k % 2] + wide_x[:, None, k] * wide_w[None, :, k]).astype(np.float32)
        total += sums[0] + sums[1]
    return total


@pytest.mark.skipif(not multiplies_pairs(), reason="activations are no pairs of bfloat16 here")
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70), channels=st.integers(1, 200), k=st.integers(1, 300), threads=st.integers(1, 5),
    add=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_tiles_multiply_any_number_of_bfloat16_rows_as_defined(
    by_tiles: Multiply, rows: int, channels: int, k: int, threads: int, add: bool, seed: int
) -> None:
    x, w = (round_to_bfloat16(values) for values in sample(rows, channels, k, seed))
    residual = sample(rows, 1, channels, seed)[0] if add else None
    expected = pairs_by_definition(x, w) + (0 if residual is None else residual)
    found = run(x, w, "bfloat16", threads=threads, residual=residual, multiply=by_tiles)
    np.testing.assert_array_equal(found, expected)
    if cpu.TILES_HERE:
        np.testing.assert_array_equal(run(x, w, "bfloat16", threads=threads, residual=residual), expected)


@pytest.mark.skipif(not multiplies_pairs(), reason="activations are no pairs of bfloat16 here")
def test_a_unit_that_adds_pairs_in_one_sum_is_found_out(by_tiles: Multiply) -> None:
    x, w = (round_to_bfloat16(values) for values in sample(5, 64, 96))
    faulty[0] = 1
    assert (run(x, w, "bfloat16", multiply=by_tiles) != pairs_by_definition(x, w)).any(axis=1).all()


def test_more_rows_than_the_cache_holds_and_extreme_sums(by_tiles: Multiply, by_vectors: Multiply) -> None:
    x, w = sample(70, 40, 13_000)
    x[:20], w[:20] = np.sign(x[:20]), np.sign(w[:20])
    x[20], w[20] = 1, 1
    found = run(x, w, "int8", multiply=by_tiles)
    np.testing.assert_array_equal(found, run(x, w, "int8", multiply=by_vectors))
    np.testing.assert_allclose(found[:21, :21], x[:21] @ w[:21].T, rtol=1e-6)


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_unit_with_unsigned_activations_is_found_out(
    by_tiles: Multiply, by_vectors: Multiply, weight_format: WeightFormat
) -> None:
    x, w = sample(17, 64, 96)
    x[0] = np.abs(x[0])
    faulty[0] = 1
    same = run(x, w, weight_format, multiply=by_tiles) == run(x, w, weight_format, multiply=by_vectors)
    assert same.all(axis=1).tolist() == [True] + [False] * 16


@pytest.mark.parametrize(("weight_format", "fewest"), [("int8", (16, 64)), ("int4", (16, 64)), ("bfloat16", (1, 32))])
def test_gemm_uses_tiles_from_so_many_rows_and_inputs_on_and_with_permission_only(
    by_tiles: Multiply, weight_format: WeightFormat, fewest: tuple[int, int]
) -> None:
    for answer in (0, 1):
        permitted[0] = answer
        for rows, k in [(1, 32), (15, 64), (16, 32), (16, 64), (40, 96)]:
            x, w = sample(rows, 64, k)
            untouched = np.isnan(run(x, w, weight_format, multiply=by_tiles)).all()
            assert untouched == (rows < fewest[0] or k < fewest[1] or not answer)


def test_the_kernel_is_asked() -> None:
    @numba.njit
    def ask() -> Any:
        return tiles_permitted(), tiles_permitted()

    granted = ctypes.CDLL(None, use_errno=True).syscall(158, 0x1023, 18) == 0
    assert ask() == (granted, granted)


@pytest.mark.parametrize("row_tiles", [1, 2])
@pytest.mark.parametrize(("weight_format", "bodies"), [("int8", [1, 1]), ("int4", [4, 1]), ("bfloat16", [1])])
def test_the_real_units_machine_code(weight_format: str, bodies: list[int], row_tiles: int) -> None:
    """Compiled for a Sapphire Rapids, not run: of two tiles of rows as many loads as products, no tile kept in memory.

    int8: a loop for 64 inputs, and one for the last 32. 4 bits: one for four groups, and one for each further one.
    """
    code = real_machine_code(weight_format, row_tiles)
    instructions: list[tuple[str, str]] = re.findall(r"\t(ldtilecfg|tile\w+|tdp\w+)(?:\t(.*))?", code)
    names = [name for name, _ in instructions]
    written = sum(bodies) if weight_format == "int4" else 1  # times that totals are zeroed and stored
    product = "tdpbf16ps" if weight_format == "bfloat16" else "tdpbsud"
    assert {name: names.count(name) for name in names} == {
        "ldtilecfg": 1, "tilerelease": 1, "tilezero": 2 * row_tiles * written, "tilestored": 2 * row_tiles * written,
        "tileloadd": (2 + row_tiles) * sum(bodies), product: 2 * row_tiles * sum(bodies),
    }  # fmt: skip
    used = {tile for _, operands in instructions for tile in re.findall(r"%tmm\d+", operands)}
    assert used == {f"%tmm{tile}" for tile in (range(8) if row_tiles == 2 else (0, 2, 4, 6, 7))}
    roles = re.findall(product + r"\t%tmm[67], %tmm[45], %tmm[0-3]\n", code)  # the unsigned, so the weights, come first
    assert len(roles) == names.count(product)
    loops = [loop for loop in re.split(r"\n\.LBB\d+_\d+:", code) if product in loop]
    assert [loop.count("tileloadd") for loop in loops] == [(2 + row_tiles) * count for count in bodies]
    assert loops[0].count("prefetcht1") == 32  # both next panels, a line each
