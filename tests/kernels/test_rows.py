"""RMS norm, SiLU gate and plain rows, each written as float32, bfloat16 and int8 GEMM input, against the definitions.
"""

from __future__ import annotations

from typing import get_args

import numba
import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.quantise.cpu import plain_row
from triolet.kernels.quantise.reference import quantise_reference
from triolet.kernels.rms_norm.cpu import rms_norm_row
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.silu_mul.cpu import silu_mul_row
from triolet.kernels.silu_mul.reference import silu_mul_reference
from triolet.kernels.simd.formats import TAGS, WEIGHT_BYTES, WeightFormat

FloatArray = npt.NDArray[np.float32]
FORMATS = get_args(WeightFormat)
K, REAL = 96, 80  # padded and true length
EPS = 1e-5


@numba.njit
def call_rms_norm(tag, x, weight, k, out, scale, correction, scratch, size, eps):
    rms_norm_row(tag, x, weight, k, out, scale, correction, scratch, size, eps)


@numba.njit
def call_silu_mul(tag, x, k, out, scale, correction, scratch):
    silu_mul_row(tag, x, k, out, scale, correction, scratch)


@numba.njit
def call_plain(tag, x, k, out, scale, correction, scratch):
    plain_row(tag, x, k, out, scale, correction, scratch)


def operate(name: str, weight_format: WeightFormat, x: FloatArray, weight: FloatArray) -> FloatArray:
    """The written row, dequantised."""
    out = np.zeros(K * WEIGHT_BYTES[weight_format], np.uint8)
    scale, correction, scratch = np.ones(1, np.float32), np.zeros(1, np.int32), np.zeros(K, np.float32)
    written = [out.ctypes.data, scale.ctypes.data, correction.ctypes.data, scratch.ctypes.data]
    tag = TAGS[weight_format]
    if name == "rms_norm":
        call_rms_norm(
            tag, x.ctypes.data, weight.ctypes.data, K, *written, np.float32(REAL), np.float32(EPS)
        )
    elif name == "silu_mul":
        call_silu_mul(tag, x.ctypes.data, K, *written)
    else:
        call_plain(tag, x.ctypes.data, K, *written)
    if weight_format == "float32":
        return out.view(np.float32)
    if weight_format == "bfloat16":
        return (out.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    q = out.view(np.int8)
    assert correction[0] == 128 * int(q.sum(dtype=np.int64))
    return q.astype(np.float32) * scale[0]


def expected(name: str, x: FloatArray, weight: FloatArray) -> FloatArray:
    if name == "rms_norm":
        wanted = np.zeros(K)
        wanted[:REAL] = rms_norm_reference(x[:REAL], weight[:REAL], EPS)
    elif name == "silu_mul":
        wanted = silu_mul_reference(x[:K], x[K:])
    else:
        wanted = x[:K]
    return np.asarray(wanted, np.float32)


def within(result: FloatArray, wanted: FloatArray, weight_format: WeightFormat) -> bool:
    """float32: 1e-6 relative (exp2 is good to 3e-7, a sum of 80 squares to 5e-6 / 2 in the worst case, 1e-7 typically).

    bfloat16: half a step of 2**-7; int8: half a step of the row's scale; both on top of the float32 error.
    """
    slack = 1e-6 * np.abs(wanted) + 1e-37
    if weight_format == "bfloat16":
        slack += np.abs(wanted) * 2.0**-8 * 1.01
    if weight_format == "int8":
        slack += np.abs(wanted).max() / 127 * 0.5 * 1.001
    return bool((np.abs(result - wanted) <= slack).all())


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "plain"])
def test_matches_the_definition_and_the_bound_can_fail(name: str, weight_format: WeightFormat) -> None:
    rng = np.random.default_rng(3)
    x = (3 * rng.standard_normal(2 * K)).astype(np.float32)
    weight = rng.standard_normal(K).astype(np.float32)
    if name == "rms_norm":
        x[REAL:K] = weight[REAL:] = 0
    wanted = expected(name, x, weight)
    result = operate(name, weight_format, x, weight)
    assert within(result, wanted, weight_format)
    largest = int(np.abs(wanted).argmax())
    assert not within(np.where(np.arange(K) == largest, result * 1.02, result), wanted, weight_format)


@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "plain"])
def test_int8_rows_of_zeros_stay_zeros(name: str) -> None:
    assert not operate(name, "int8", np.zeros(2 * K, np.float32), np.ones(K, np.float32)).any()


def test_extreme_gates_are_finite() -> None:
    x = np.zeros(2 * K, np.float32)
    x[:6] = [-1e30, -200, -90, 90, 200, 1e30]
    x[K:] = 1
    result = operate("silu_mul", "float32", x, x)
    np.testing.assert_allclose(result[3:6], x[3:6])
    assert (np.abs(result[1:3]) < 1e-30).all()
    assert np.isfinite(result).all()


def test_bfloat16_rounds_ties_to_even() -> None:
    x = np.zeros(2 * K, np.float32)
    x[:4] = np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 0xBF808001], np.uint32).view(np.float32)
    np.testing.assert_array_equal(operate("plain", "bfloat16", x, x), round_to_bfloat16(x[:K]))
    result = operate("plain", "bfloat16", x, x)[:4].view(np.uint32) >> 16
    assert result.tolist() == [0x3F80, 0x3F82, 0x3F80, 0xBF81]


def test_int8_equals_its_definition_bit_for_bit() -> None:
    x = np.random.default_rng(8).standard_normal(2 * K).astype(np.float32)
    q, scale, _ = quantise_reference(x[:K])
    np.testing.assert_array_equal(operate("plain", "int8", x, x), q.astype(np.float32) * scale)
