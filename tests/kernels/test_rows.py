"""Norms, activations and plain rows, each as float32, bfloat16 and int8 GEMM input, against the definitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.activation.cpu import activation_row
from triolet.kernels.activation.reference import activation_reference
from triolet.kernels.compile_cache import compiled
from triolet.kernels.gemm.reference import round_to_bfloat16
from triolet.kernels.layer_norm.cpu import layer_norm_row
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.quantise.cpu import plain_row
from triolet.kernels.quantise.layout import (
    CORRECTION,
    ENTRY_BYTES,
    GROUP_BYTES,
    HEADER_BYTES,
    SCALE,
    WIDE_QUADS,
    row_bytes,
)
from triolet.kernels.quantise.reference import quantise_groups_reference, quantise_reference
from triolet.kernels.rms_norm.cpu import norm_row
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.silu_mul.cpu import silu_mul_row
from triolet.kernels.silu_mul.reference import silu_mul_reference
from triolet.kernels.simd.activations import NUMBERS
from triolet.kernels.simd.dot import broadcast_format
from triolet.kernels.simd.formats import GROUP, TAGS, Tag, WeightFormat

FloatArray = npt.NDArray[np.float32]
FORMATS = get_args(WeightFormat)
K, REAL = 96, 80  # padded and true length
EPS = 1e-5
NORMS = ("rms_norm", "layer_norm")
GATES = {"silu_mul": (np.inf, 1.0, 0.0), "clamped": (0.8, 1.702, 1.0)}  # limit, slope, offset
BIAS = np.linspace(-0.4, 0.5, K, dtype=np.float32)
BIAS[REAL:] = 0
ROW_NUMBERS = ((SCALE, np.float32), (CORRECTION, np.int32), (WIDE_QUADS, np.int32))


@compiled
def call_norm(
    tag: Tag, x: int, gain: int, bias: int, k: int, out: int, scratch: int, centred: int, size: np.float32,
    eps: np.float32,
) -> None:  # fmt: skip
    norm_row(tag, x, gain, bias, k, out, scratch, centred, size, eps)


@compiled
def call_activation(tag: Tag, x: int, bias: int, k: int, out: int, scratch: int, number: int) -> None:
    activation_row(tag, x, x + k * 4, bias, bias + k * 4, k, out, scratch, number)


@compiled
def call_silu_mul(
    tag: Tag, x: int, k: int, out: int, scratch: int, limit: np.float32, slope: np.float32, offset: np.float32
) -> None:
    silu_mul_row(tag, x, k, out, scratch, limit, slope, offset)


@compiled
def call_plain(tag: Tag, x: int, k: int, out: int, scratch: int) -> None:
    plain_row(tag, x, k, out, scratch)


def operate(name: str, weight_format: WeightFormat, x: FloatArray, weight: FloatArray) -> FloatArray:
    """The written row, dequantised."""
    out, scratch = np.full(row_bytes(weight_format, K), 255, np.uint8), np.zeros(K, np.float32)
    written = out.ctypes.data, scratch.ctypes.data
    tag = TAGS[weight_format]
    if name in NORMS:
        bias = BIAS if name == "layer_norm" else np.zeros(K, np.float32)
        call_norm(
            tag, x.ctypes.data, weight.ctypes.data, bias.ctypes.data, K, *written, int(name == "layer_norm"),
            np.float32(REAL), np.float32(EPS),
        )  # fmt: skip
    elif name in NUMBERS:
        bias = np.concatenate([BIAS, -BIAS])
        call_activation(tag, x.ctypes.data, bias.ctypes.data, K, *written, NUMBERS[name])
    elif name in GATES:
        call_silu_mul(tag, x.ctypes.data, K, *written, *map(np.float32, GATES[name]))
    else:
        call_plain(tag, x.ctypes.data, K, *written)
    if broadcast_format(weight_format) == "float32":
        return out.view(np.float32)
    if weight_format == "bfloat16":
        return (out.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if weight_format != "int8":
        groups = out.reshape(-1, GROUP_BYTES)
        q = groups[:, :GROUP].view(np.int8)
        numbers = groups[:, GROUP:].copy().view(np.int32)  # offset, four starts, three sums
        halves = q.reshape(-1, 2, GROUP // 2).sum(axis=2, dtype=np.int32)
        total = halves.sum(axis=1, keepdims=True, dtype=np.int32)
        wanted = numbers[:, :1] - np.hstack([8 * total, 128 * total, 32 * halves])
        np.testing.assert_array_equal(numbers[:, 1:5], wanted)
        scales: FloatArray = numbers[:, :1].view(np.float32) / np.float32(1.5 * 2**23)
        np.testing.assert_array_equal(numbers[:, 5:].view(np.float32), np.hstack([total, halves]) * scales)
        return (q.astype(np.float32) * scales).reshape(-1)
    q = out[HEADER_BYTES : HEADER_BYTES + K].view(np.int8).astype(np.int32)
    scale, correction, wide = (out[start : start + 4].view(kind)[0] for start, kind in ROW_NUMBERS)
    entries = out[HEADER_BYTES + K :][: ENTRY_BYTES * wide].view(np.int32).reshape(-1, 2).copy()
    q.reshape(-1, 4)[entries[:, 0]] += 64 * entries[:, 1:].view(np.int8).astype(np.int32)
    assert correction == 128 * int(q.sum())
    whole: FloatArray = q.astype(np.float32) * scale
    return whole


def expected(name: str, x: FloatArray, weight: FloatArray) -> FloatArray:
    if name in NORMS:
        wanted: npt.NDArray[np.floating] = np.zeros(K)
        norm = layer_norm_reference(x[:REAL], weight[:REAL], BIAS[:REAL], EPS)
        wanted[:REAL] = norm if name == "layer_norm" else rms_norm_reference(x[:REAL], weight[:REAL], EPS)
    elif name in NUMBERS:
        wanted = activation_reference(name, x[:K] + BIAS, x[K:] - BIAS)
    elif name in GATES:
        wanted = silu_mul_reference(x[:K], x[K:], *GATES[name])
    else:
        wanted = x[:K]
    return np.asarray(wanted, np.float32)


def within(result: FloatArray, wanted: FloatArray, weight_format: WeightFormat, absolute: float) -> bool:
    """float32: 1e-6 relative (exp2 is good to 3e-7, a sum of 80 squares to 5e-6 / 2 in the worst case, 1e-7 typically).

    bfloat16: half a step of 2**-7; int8: half a step of the row's scale (int4, stored:
    of the group's, which is rounded up to a power of two); on top of the float32 error. Where a sum cancels, as in
    LayerNorm and in GELU's tail, the error is as large as that of its terms: `absolute`.
    """
    slack = 1e-6 * np.abs(wanted) + 1e-37 + absolute
    if weight_format == "bfloat16":
        slack += np.abs(wanted) * 2.0**-8 * 1.01
    if weight_format == "int8":
        slack += np.abs(wanted).max() / 127 * 0.5 * 1.001
    if weight_format in ("int4", "int4-128", "stored"):
        slack += np.repeat(np.abs(wanted).reshape(-1, GROUP).max(axis=1), GROUP) / 63.5 * 0.5 * 1.001
    return bool((np.abs(result - wanted) <= slack).all())


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("name", [*NORMS, *NUMBERS, *GATES, "plain"])
def test_matches_the_definition_and_the_bound_can_fail(name: str, weight_format: WeightFormat) -> None:
    rng = np.random.default_rng(3)
    x = (3 * rng.standard_normal(2 * K)).astype(np.float32)
    weight = rng.standard_normal(K).astype(np.float32)
    if name in NORMS:
        x[REAL:K] = weight[REAL:] = 0
    wanted = expected(name, x, weight)
    result = operate(name, weight_format, x, weight)
    absolute = 3e-6 if name in ("layer_norm", "gelu", "gelu_tanh") else 0.0
    if name == "clamped":  # x in exp(x), three times rounded, has an error of 2e-7 x: of x**2 exp(-x), below 0.6
        absolute = 3e-7
    assert within(result, wanted, weight_format, absolute)
    largest = int(np.abs(wanted).argmax())
    assert not within(np.where(np.arange(K) == largest, result * 1.02, result), wanted, weight_format, absolute)


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "plain"])
def test_quantised_rows_of_zeros_stay_zeros(name: str, weight_format: WeightFormat) -> None:
    assert not operate(name, weight_format, np.zeros(2 * K, np.float32), np.ones(K, np.float32)).any()


def test_extreme_gates_are_finite() -> None:
    x = np.zeros(2 * K, np.float32)
    x[:6] = [-1e30, -200, -90, 90, 200, 1e30]
    x[K:] = 1
    for name in ("silu_mul", "silu"):
        gates = x.copy()
        if name == "silu":  # whose test adds biases
            gates[6:K] = 0
            gates[K:] += BIAS
        result = operate(name, "float32", gates, gates)
        np.testing.assert_allclose(result[3:6], x[3:6], rtol=1e-2)
        assert np.isfinite(result).all()


def test_bfloat16_rounds_ties_to_even() -> None:
    x = np.zeros(2 * K, np.float32)
    x[:4] = np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 0xBF808001], np.uint32).view(np.float32)
    np.testing.assert_array_equal(operate("plain", "bfloat16", x, x), round_to_bfloat16(x[:K]))
    result = operate("plain", "bfloat16", x, x)[:4].view(np.uint32) >> 16
    assert result.tolist() == [0x3F80, 0x3F82, 0x3F80, 0xBF81]


@pytest.mark.parametrize(
    "factors", [{}, {7: 60}, {7: 60, 8: -70, 40: 1e5}, dict.fromkeys(range(0, 96, 16), 100.0), {95: 1e30}]
)
def test_quantised_rows_equal_their_definition_bit_for_bit(factors: dict[int, float]) -> None:
    """Without wide values, with few, with so many that the scale is plain, with all but one rounded to zero."""
    x = np.random.default_rng(8).standard_normal(2 * K).astype(np.float32)
    for place, factor in factors.items():
        x[place] = factor
    q, scale = quantise_reference(x[:K])
    assert (np.abs(q).max() > 127) == (0 < len(factors) < 4)
    np.testing.assert_array_equal(operate("plain", "int8", x, x), q.astype(np.float32) * scale)
    q, scales = quantise_groups_reference(x[:K])
    np.testing.assert_array_equal(operate("plain", "int4", x, x), q.astype(np.float32) * np.repeat(scales, GROUP))


@compiled
def call_layer_norm(
    tag: Tag,
    x: int,
    bias: int,
    weight: int,
    shift: int,
    keep: int,
    k: int,
    out: int,
    size: np.float32,
    eps: np.float32,
) -> None:
    layer_norm_row(tag, x, bias, weight, shift, keep, k, out, out, size, eps)


def _four(rows: Iterable[FloatArray]) -> tuple[int, int, int, int]:
    first, second, third, fourth = (row.ctypes.data for row in rows)
    return first, second, third, fourth


@pytest.mark.parametrize("name", NUMBERS)
def test_an_activation_is_its_definition(name: str) -> None:
    """Far and near values, beside a gate with a bias. erf's formula is good to 1.5e-7, times |x| / 2."""
    rng = np.random.default_rng(5)
    x = np.concatenate([np.linspace(-30, 30, 1008), [0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4, 0.5, -0.5] * 2])
    x_row, y, bias, y_bias = np.stack([x, *rng.standard_normal((3, 1024))]).astype(np.float32)
    rows, biases = np.concatenate([x_row, y]), np.concatenate([bias, y_bias])
    out = np.empty(1024, np.float32)
    to = out.ctypes.data
    call_activation(np.float32(0), rows.ctypes.data, biases.ctypes.data, 1024, to, to, NUMBERS[name])
    gate, factor = x_row + bias, y + y_bias
    wanted = activation_reference(name, gate, factor)
    slack = 4e-7 * (np.abs(gate * factor) + np.abs(wanted)) + 1e-7
    assert (np.abs(out - wanted) <= slack).all()
    other = activation_reference("gelu" if name != "gelu" else "gelu_tanh", gate, factor)
    assert not (np.abs(out - other) <= slack).all()


@pytest.mark.parametrize("keep", [0, 1])
def test_a_layer_norm_is_its_definition_and_leaves_the_right_row(keep: int) -> None:
    rng = np.random.default_rng(6)
    x, bias, weight, shift = (np.zeros(K, np.float32) for _ in range(4))
    for row in (x, bias, weight, shift):
        row[:REAL] = rng.standard_normal(REAL)
    x[:REAL] += 5  # a mean far from zero
    sums, out = (x + bias)[:REAL].copy(), np.empty(K, np.float32)
    x_at, bias_at, weight_at, shift_at = _four((x, bias, weight, shift))
    sizes = np.float32(REAL), np.float32(EPS)
    call_layer_norm(np.float32(0), x_at, bias_at, weight_at, shift_at, keep, K, out.ctypes.data, *sizes)
    wanted = layer_norm_reference(sums, weight[:REAL], shift[:REAL], EPS)
    assert np.abs(out[:REAL] - wanted).max() < 1e-5
    assert np.abs(out[:REAL] - layer_norm_reference(sums, weight[:REAL], 0.0, EPS)).max() > 1e-2
    assert not out[REAL:].any()
    assert np.array_equal(x, out if keep else np.pad(sums, (0, K - REAL)))
