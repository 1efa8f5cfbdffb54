"""The packed GEMM against its float64 definition, for every format, ragged sizes, and any grouping of rows."""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.gemm.cpu import gemm
from triolet.kernels.gemm.pack import Part, pack, packed_bytes, padded, panel_bytes, to_bfloat16_bits
from triolet.kernels.gemm.reference import gemm_reference
from triolet.kernels.quantise.reference import quantise_reference
from triolet.kernels.simd.formats import TAGS, WEIGHT_BYTES, WeightFormat

FloatArray = npt.NDArray[np.float32]
FORMATS = get_args(WeightFormat)


def aligned(size: int) -> npt.NDArray[np.uint8]:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def run(
    x: FloatArray, w: FloatArray, weight_format: WeightFormat, *, threads: int = 1, residual: FloatArray | None = None
) -> FloatArray:
    """x @ w.T by the compiled kernel, activations prepared by the definitions."""
    rows, k = x.shape
    channels, k_padded = padded(len(w)), padded(k, 32)
    packed = aligned(packed_bytes(channels, k_padded, weight_format))
    pack(packed, [Part(w, np.arange(len(w)))], np.arange(k), channels, k_padded, weight_format)
    wide = np.zeros((rows, k_padded), np.float32)
    wide[:, :k] = x
    scales, corrections = np.ones(rows, np.float32), np.zeros(rows, np.int32)
    if weight_format == "int8":
        quantised = [quantise_reference(row) for row in wide]
        activations = np.stack([row for row, _, _ in quantised]).view(np.uint8)
        scales[:] = [scale for _, scale, _ in quantised]
        corrections[:] = [correction for _, _, correction in quantised]
    elif weight_format == "bfloat16":
        activations = to_bfloat16_bits(wide).view(np.uint8)
    else:
        activations = wide.view(np.uint8)
    out = np.full((rows, channels), np.nan, np.float32)
    if residual is not None:
        out[:, : len(w)] = residual
    for thread in range(threads):
        gemm(
            TAGS[weight_format], thread, threads, int(residual is not None), rows, k_padded,
            activations.ctypes.data, activations.shape[1], packed.ctypes.data, WEIGHT_BYTES[weight_format],
            packed.ctypes.data + panel_bytes(channels, k_padded, weight_format), channels,
            out.ctypes.data, channels * 4, scales.ctypes.data, corrections.ctypes.data,
        )  # fmt: skip
    return out[:, : len(w)]


def bound(x: FloatArray, w: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.float64]:
    """Largest error that float32 sums of k products can have: k * 2**-24 of the sum of absolute products.

    VDPBF16PS rounds each pair twice, hence twice that. int8 sums are exact; three float32 products and two conversions
    follow, and the scales have an error of their own: 8 roundings of the result at most.
    """
    absolute = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)).T
    roundings = {"float32": x.shape[1], "bfloat16": 2 * x.shape[1], "int8": 8}[weight_format]
    return absolute * roundings * 2.0**-24 * 1.02  # 1.02: rounding to bfloat16 or int8 moves the products themselves


def sample(rows: int, channels: int, k: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k), dtype=np.float32)
    return x, rng.standard_normal((channels, k), dtype=np.float32)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(
    ("rows", "channels", "k"),
    [(1, 64, 32), (2, 957, 40), (3, 130, 100), (5, 64, 96), (6, 64, 32), (17, 200, 768), (41, 70, 33)],
)
def test_matches_the_definition(weight_format: WeightFormat, rows: int, channels: int, k: int) -> None:
    x, w = sample(rows, channels, k)
    error = np.abs(run(x, w, weight_format) - gemm_reference(x, w, weight_format))
    assert (error <= bound(x, w, weight_format)).all()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_the_bound_rejects_one_wrong_weight(weight_format: WeightFormat) -> None:
    x, w = sample(3, 130, 100)
    wrong = w.copy()
    wrong[77, 50] += 0.1
    error = np.abs(run(x, wrong, weight_format) - gemm_reference(x, w, weight_format))
    assert (error > bound(x, w, weight_format)).any(axis=0).nonzero()[0].tolist() == [77]


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(weight_format: WeightFormat) -> None:
    x, w = sample(23, 200, 96)
    whole = run(x, w, weight_format)
    for first in range(23):
        for count in (1, 2, 3, 4, 5, 6, 9):
            part = run(x[first : first + count], w, weight_format, threads=1 + count % 3)
            np.testing.assert_array_equal(part, whole[first : first + count])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_the_residual_is_added(weight_format: WeightFormat) -> None:
    x, w = sample(7, 100, 64)
    residual = np.random.default_rng(1).standard_normal((7, 100), dtype=np.float32)
    np.testing.assert_array_equal(
        run(x, w, weight_format, residual=residual), residual + run(x, w, weight_format), strict=True
    )


def test_bfloat16_checkpoints_pack_like_their_float32_values() -> None:
    _, w = sample(1, 70, 40)
    bits = to_bfloat16_bits(w)
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    for weight_format in FORMATS:
        packed = []
        for source in (bits, widened):
            target = aligned(packed_bytes(128, 64, weight_format))
            pack(target, [Part(source, np.arange(70))], np.arange(40), 128, 64, weight_format)
            packed.append(target)
        np.testing.assert_array_equal(*packed)


def test_extreme_int8_sums_do_not_overflow() -> None:
    k = 16_384
    x, w = np.ones((1, k), np.float32), np.ones((64, k), np.float32)
    np.testing.assert_allclose(run(x, w, "int8"), k, rtol=1e-6)
    np.testing.assert_allclose(run(-x, w, "int8"), -k, rtol=1e-6)
