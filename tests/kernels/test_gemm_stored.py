"""The GEMM over codes and scales as checkpoints store them, against float64, for every layout; planted errors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.gemm.codes import CodeLayout, CodeRows, float_rows
from triolet.kernels.gemm.cpu import gemm
from triolet.kernels.gemm.pack import Part, Rows
from triolet.kernels.gemm.pack_stored import pack_stored, stored_bytes
from triolet.kernels.gemm.reference import rounded_activations
from triolet.kernels.gemm.segments import SEGMENT_BYTES, SEGMENTS_START
from triolet.kernels.gemm.tile_fp4 import looked_up_here
from triolet.kernels.gemm.tile_int4 import INT4_MOST_ROWS
from triolet.kernels.simd.formats import GROUP, TAGS
from triolet.loadtest.device.random_stored import LAYOUTS, Held, held

from .test_gemm import activation_row, aligned

FloatArray = npt.NDArray[np.float32]
K = 512


def packed_matrix(
    parts: list[Part], channels: int, columns: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.uint8]:
    places = np.arange(K) if columns is None else columns
    target = aligned(stored_bytes(parts, places, channels, K))
    pack_stored(target, parts, places, channels, K)
    return target


def run(
    x: FloatArray, packed: npt.NDArray[np.uint8], channels: int, *, threads: int = 1, residual: FloatArray | None = None
) -> FloatArray:
    wide = np.zeros((len(x) + INT4_MOST_ROWS, K), np.float32)
    wide[: len(x)] = x
    activations = np.stack([activation_row(row, "stored") for row in wide])
    out = np.full((len(x), channels), np.nan, np.float32) if residual is None else residual.copy()
    for thread in range(threads):
        gemm(
            TAGS["stored"], thread, threads, int(residual is not None), len(x), K, activations.ctypes.data,
            activations.shape[1], 0, packed.ctypes.data, 0, channels, out.ctypes.data, channels * 4,
        )  # fmt: skip
    return out


def product(x: FloatArray, matrix: Rows, rows: int) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = rounded_activations(x, "stored") @ matrix.rows(0, rows).astype(np.float64).T
    return result


def bound(x: FloatArray, matrix: Held, rows: int) -> npt.NDArray[np.float64]:
    """Largest error of the kernel, which adds two exact numbers per scale in float32.

    Each of these sums is at most that of |x| times scale * (code + its zero) + |minimum|, and is rounded by 2**-24; the
    minimum itself by as much twice, the definition's weights likewise.
    """
    found = matrix.codes(0, rows)
    scales = np.abs(float_rows(matrix.layout._replace(minima="none", zero=0), found._replace(minima=None)))
    size = scales + np.abs(matrix.rows(0, rows)) + np.abs(scales - matrix.rows(0, rows))
    ones = found._replace(codes=np.ones_like(found.codes), minima=None)
    size += 128 * np.abs(float_rows(matrix.layout._replace(minima="none", zero=0), ones))
    sums = 2 * (K // min(GROUP, matrix.layout.group)) + 4
    largest: npt.NDArray[np.float64] = np.abs(x.astype(np.float64)) @ size.astype(np.float64).T * sums * 2.0**-24
    return largest


def sample(rows: int, seed: int = 3) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, K), dtype=np.float32)


@pytest.mark.parametrize("name", LAYOUTS)
def test_codes_run_as_they_are(name: str) -> None:
    matrix = held(LAYOUTS[name], 70, K)
    packed = packed_matrix([Part(matrix, np.arange(70))], 128)
    for rows in (1, 3, 17):
        x = sample(rows)
        result = run(x, packed, 128, threads=2)
        assert (np.abs(result[:, :70] - product(x, matrix, 70)) <= bound(x, matrix, 70)).all()
        assert not result[:, 70:].any()


def tampered(found: CodeRows, part: str) -> CodeRows:
    """Codes of a kernel that gets one thing wrong."""
    match part:
        case "minimum ignored":
            assert found.minima is not None
            return found._replace(minima=np.zeros_like(found.minima))
        case "one code":
            codes = found.codes.copy()
            codes[33, 77] ^= 1
            return found._replace(codes=codes)
        case "scale of the next group":
            return found._replace(scales=np.roll(found.scales, 1, axis=1))
        case _:
            assert found.upper_scales is not None
            return found._replace(upper_scales=found.upper_scales[:, ::-1].copy())


PLANTED = [
    *((name, "minimum ignored") for name in ("Q4_1", "Q4_K", "AWQ")),
    *((name, "one code") for name in ("Q8_0", "Q6_K", "Q4_K")),
    *((name, "scale of the next group") for name in ("Q4_0", "Q6_K", "AWQ", "MXFP4")),
    *((name, "wrong superblock") for name in ("Q4_K", "Q6_K")),
]


@pytest.mark.parametrize(("name", "part"), PLANTED)
def test_the_bound_rejects(name: str, part: str) -> None:
    matrix, x = held(LAYOUTS[name], 70, K), sample(3)
    wrong = Held(matrix.layout, tampered(matrix.codes(0, 70), part))
    result = run(x, packed_matrix([Part(wrong, np.arange(70))], 128), 128)
    failed = (np.abs(result[:, :70] - product(x, matrix, 70)) > bound(x, matrix, 70)).any(axis=0)
    assert np.flatnonzero(failed).tolist() == [33] if part == "one code" else failed.mean() > 0.9


def test_numbers_of_fp4_take_4_bits_where_they_are_looked_up() -> None:
    matrix = held(LAYOUTS["MXFP4"], 64, K)
    size = stored_bytes([Part(matrix, np.arange(64))], np.arange(K), 64, K)
    scales = 64 * K // GROUP * 2
    assert size == SEGMENTS_START + SEGMENT_BYTES + 64 * K * (4 if looked_up_here() else 6) // 8 + scales


def test_a_row_does_not_depend_on_the_others_nor_on_threads() -> None:
    for name in ("Q8_0", "Q4_K", "Q6_K", "MXFP4"):
        packed, x = packed_matrix([Part(held(LAYOUTS[name], 100, K), np.arange(100))], 128), sample(13)
        whole = run(x, packed, 128)
        for first, count in ((0, 1), (3, 2), (5, 4), (6, 7)):
            part = run(x[first : first + count], packed, 128, threads=3)
            np.testing.assert_array_equal(part, whole[first : first + count])


def test_a_merged_projection_mixes_layouts_and_adds_the_residual() -> None:
    """As query, key and value in a file of 4 and 6 bits, the value unquantised; gaps between padded heads are zeros."""
    value = sample(20, seed=9)
    parts = [
        Part(held(LAYOUTS["Q4_K"], 30, K), np.arange(30)),
        Part(held(LAYOUTS["Q6_K"], 32, K), np.concatenate([np.arange(32, 52), np.arange(56, 68)])),
        Part(value, np.arange(96, 116)),
    ]
    x = sample(5)
    packed = packed_matrix(parts, 128)
    result = run(x, packed, 128, threads=3)
    twice = run(x, packed, 128, residual=result)
    np.testing.assert_array_equal(twice[:, :96], 2 * result[:, :96])
    np.testing.assert_allclose(twice, 2 * result, rtol=1e-6)  # 16 bits are added in two parts
    for part in parts[:2]:
        assert isinstance(part.weights, Held)
        rows = len(part.channels)
        error = np.abs(result[:, part.channels] - product(x, part.weights, rows))
        assert (error <= bound(x, part.weights, rows)).all()
    assert not result[:, [30, 31, *range(52, 56), *range(68, 96), *range(116, 128)]].any()
    exact = rounded_activations(x, "stored") @ value.astype(np.float64).T
    groups = np.abs(value.reshape(20, -1, GROUP)).max(axis=2)
    step = np.repeat(groups, GROUP, axis=1) / 32_000
    assert (np.abs(result[:, 96:116] - exact) <= np.abs(x) @ step.T * 0.52 + 1e-4).all()
    assert (np.abs(result[:, 96:116] - exact) > np.abs(x) @ step.T * 0.52 / 128 + 1e-4).any()  # of 8 bits only


def test_codes_of_padded_heads_become_16_bits() -> None:
    """Their inputs are spread, so groups of 32 are not neighbours any more."""
    matrix = held(LAYOUTS["Q8_0"], 64, 480)
    places = (np.arange(8) * 64)[:, None] + np.arange(60)
    x = np.zeros((3, K), np.float32)
    x[:, places.reshape(-1)] = sample(3)[:, :480]
    packed = packed_matrix([Part(matrix, np.arange(64))], 64, places.reshape(-1))
    dense = np.zeros((64, K))
    dense[:, places.reshape(-1)] = matrix.rows(0, 64)
    expected = rounded_activations(x, "stored") @ dense.T
    assert np.abs(run(x, packed, 64) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_layouts_that_the_kernel_lacks_become_16_bits() -> None:
    """Groups of 96, or of 16 with 4 bits."""
    x = sample(2)
    for layout in (CodeLayout(4, 96, "float16"), CodeLayout(4, 16, "float16")):
        matrix = held(layout, 64, K)
        expected = product(x, matrix, 64)
        packed = packed_matrix([Part(matrix, np.arange(64))], 64)
        assert packed.size > 64 * K * 2
        assert np.abs(run(x, packed, 64) - expected).max() <= 1e-4 * np.abs(expected).max()
