"""The packed GEMM against its float64 definition, for every format, ragged sizes, and any grouping of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.gemm.cpu import gemm, row_blocks
from triolet.kernels.gemm.pack import CHUNK, Part, pack, packed_bytes, padded, panel_bytes
from triolet.kernels.gemm.reference import (
    gemm_reference,
    round_to_bfloat16,
    round_to_int8,
    rounded_activations,
    rounded_weights,
)
from triolet.kernels.gemm.shared import shared_gemm
from triolet.kernels.gemm.tile_int4 import INT4_MOST_ROWS
from triolet.kernels.quantise.layout import CORRECTION, HEADER_BYTES, SCALE, WIDE_QUADS, row_bytes
from triolet.kernels.quantise.reference import quantise_groups_reference, quantise_reference
from triolet.kernels.simd.dot import broadcast_format
from triolet.kernels.simd.formats import GROUP, GROUP_SHIFTS, TAGS, Tag, WeightFormat
from triolet.kernels.threads.shares import MOST_SHARES, Crew, state_bytes

FloatArray = npt.NDArray[np.float32]
FORMATS: list[WeightFormat] = [name for name in get_args(WeightFormat) if name != "stored"]


def aligned(size: int) -> npt.NDArray[np.uint8]:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def run(
    x: FloatArray,
    w: FloatArray,
    weight_format: WeightFormat,
    *,
    threads: int = 1,
    residual: FloatArray | None = None,
    multiply: Callable[..., None] = gemm,
) -> FloatArray:
    """x @ w.T by the compiled kernel, activations prepared by the definitions."""
    rows, k = x.shape
    channels, k_padded = padded(len(w)), padded(k, 32)
    packed = packed_weights(w, weight_format)
    wide = np.zeros((rows + INT4_MOST_ROWS, k_padded), np.float32)
    wide[:rows, :k] = x
    activations = np.stack([activation_row(row, weight_format) for row in wide])
    out = np.full((rows, channels), np.nan, np.float32)
    if residual is not None:
        out[:, : len(w)] = residual
    for thread in range(threads):
        multiply(
            TAGS[weight_format], thread, threads, int(residual is not None), rows, k_padded,
            activations.ctypes.data, activations.shape[1], packed.ctypes.data,
            packed.ctypes.data + panel_bytes(channels, k_padded, weight_format), GROUP_SHIFTS.get(weight_format, 0),
            channels, out.ctypes.data, channels * 4,
        )  # fmt: skip
    return out[:, : len(w)]


def packed_weights(w: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.uint8]:
    channels, k = padded(len(w)), padded(w.shape[1], 32)
    packed = aligned(packed_bytes(channels, k, weight_format))
    pack(packed, [Part(w, np.arange(len(w)))], np.arange(int(w.shape[1])), channels, k, weight_format)
    return packed


def unpacked_int4(w: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.float64]:
    """The weights that a packed w stands for, as tile_int4.py describes them."""
    channels, groups = padded(len(w)), padded(w.shape[1], 32) // 32
    packed = packed_weights(w, weight_format)
    size = panel_bytes(channels, groups * 32, weight_format)
    panels = packed[:size].reshape(channels // 16, groups, 4, 16, 4)
    integers = np.concatenate([panels & 15, panels >> 4], axis=2).astype(np.int64) - 8
    bits = packed[size:].view(np.uint16).astype(np.uint32) << 16
    scales = bits.view(np.float32).reshape(channels // 16, -1, 1, 16, 1).astype(np.float64)
    scales = np.repeat(scales, 4 if weight_format == "int4-128" else 1, axis=1)[:, :groups]
    return (integers * scales).transpose(0, 3, 1, 2, 4).reshape(channels, -1)[: len(w), : w.shape[1]]


def definition(x: FloatArray, w: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.float64]:
    """By the reference; 4-bit weights as they were packed: two tries of a group may be equally good."""
    if weight_format.startswith("int4"):
        return rounded_activations(x, weight_format) @ unpacked_int4(w, weight_format).T
    return gemm_reference(x, w, weight_format)


def bfloat16_bits(values: FloatArray) -> npt.NDArray[np.uint16]:
    return (round_to_bfloat16(values).view(np.uint32) >> 16).astype(np.uint16)


def activation_row(x: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.uint8]:
    """A row as quantise/layout.py describes it, by the definitions."""
    if weight_format == "float32":
        return x.view(np.uint8)
    if weight_format == "bfloat16":
        wide = broadcast_format(weight_format) == "float32"
        return (round_to_bfloat16(x) if wide else bfloat16_bits(x)).view(np.uint8)
    if weight_format != "int8":
        q, scales = quantise_groups_reference(x)
        groups = q.reshape(-1, GROUP)
        offsets = (np.float32(1.5 * 2**23) * scales)[:, None]
        halves = groups.reshape(-1, 2, GROUP // 2).sum(axis=2, dtype=np.int32)
        whole = halves.sum(axis=1, keepdims=True, dtype=np.int32)
        starts = offsets.view(np.int32) - np.hstack([8 * whole, 128 * whole, 32 * halves])
        sums = np.hstack([whole, halves]).astype(np.float32) * scales[:, None]
        columns = groups.astype(np.int8), offsets, starts, sums
        return np.hstack([column.view(np.uint8) for column in columns]).reshape(-1)
    q, scale = quantise_reference(x)
    row = np.zeros(row_bytes("int8", len(x)), np.uint8)
    high = np.where(np.abs(q) > 127, (q + 32) // 64, 0)
    quads = np.flatnonzero(high.reshape(-1, 4).any(axis=1))
    row[SCALE : SCALE + 4] = scale.reshape(1).view(np.uint8)
    row[CORRECTION : CORRECTION + 4] = np.array([128 * q.sum(dtype=np.int64)]).astype(np.int32).view(np.uint8)
    row[WIDE_QUADS] = len(quads)
    row[HEADER_BYTES : HEADER_BYTES + len(x)] = (q - 64 * high).astype(np.int8).view(np.uint8)
    entries = np.column_stack([quads.astype(np.int32), high.reshape(-1, 4)[quads].astype(np.int8).view(np.int32)])
    row[HEADER_BYTES + len(x) :][: entries.nbytes] = entries.reshape(-1).view(np.uint8)
    return row


def bound(x: FloatArray, w: FloatArray, weight_format: WeightFormat) -> npt.NDArray[np.float64]:
    """Largest error that float32 sums of k products can have: k * 2**-24 of the sum of absolute products.

    VDPBF16PS rounds each pair twice, hence twice that; BFDOT half as often, with twice the error, which is less. int8
    sums are exact; three float32 products and two conversions follow, and the scales have an error of their own: 8
    roundings of the result at most. int4's groups are exact, and each is added with one rounding.
    """
    absolute = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)).T
    groups = -(-x.shape[1] // GROUP)
    roundings = {"float32": x.shape[1], "bfloat16": 2 * x.shape[1], "int8": 8}.get(weight_format, groups + 1)
    # 1.02: rounding to bfloat16 or int8 moves the products themselves.
    largest: npt.NDArray[np.float64] = absolute * roundings * 2.0**-24 * 1.02
    return largest


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
    error = np.abs(run(x, w, weight_format) - definition(x, w, weight_format))
    assert (error <= bound(x, w, weight_format)).all()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_the_bound_rejects_one_wrong_weight(weight_format: WeightFormat) -> None:
    x, w = sample(3, 130, 100)
    wrong = w.copy()
    wrong[77, 50] += 1 if weight_format.startswith("int4") else 0.1  # 4 bits: a step is about 0.4
    error = np.abs(run(x, wrong, weight_format) - definition(x, w, weight_format))
    assert np.flatnonzero((error > bound(x, w, weight_format)).any(axis=0)).tolist() == [77]


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


@compiled
def by_all(crew: Crew, tag: Tag, add: int, rows: int, k: int, a: int, a_stride: int, weights: int, scales: int,
           group_shift: int, channels: int, out: int, out_stride: int) -> int:  # fmt: skip
    return shared_gemm(
        tag, crew, 0, add, rows, k, a, a_stride, weights, scales, group_shift, channels, out, out_stride
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3, MOST_SHARES // 2, MOST_SHARES])
def test_a_stage_of_several_blocks_of_rows_is_the_same_product(threads: int) -> None:
    """However few shares are left for blocks: a stage has at most MOST_SHARES."""
    (x, w), state = sample(450, 64, 2048), np.zeros(state_bytes(threads), np.uint8)
    assert row_blocks(TAGS["int8"], 450, 2048) > 2
    residual = sample(450, 1, 64, 5)[0]

    def multiply(tag: Tag, thread: int, _: int, *arguments: int) -> None:
        assert by_all(Crew(state.ctypes.data, thread, threads), tag, *arguments) == 1

    found = run(x, w, "int8", residual=residual, multiply=multiply)  # the first thread does the others' shares
    np.testing.assert_array_equal(found, run(x, w, "int8", residual=residual))


def test_bfloat16_checkpoints_pack_like_their_float32_values() -> None:
    _, w = sample(1, 70, 40)
    bits = bfloat16_bits(w)
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    for weight_format in FORMATS:
        packed = list[npt.NDArray[np.uint8]]()
        for source in (bits, widened):
            target = aligned(packed_bytes(128, 64, weight_format))
            pack(target, [Part(source, np.arange(70))], np.arange(40), 128, 64, weight_format)
            packed.append(target)
        np.testing.assert_array_equal(packed[0], packed[1])


@pytest.mark.parametrize(
    "places",
    [np.arange(40) + 8, np.concatenate([np.arange(20), np.arange(24, 44)]), np.r_[np.arange(20) * 2 + 1, 60:40:-1]],
    ids=["later", "halves", "permuted"],
)
def test_rows_and_columns_are_packed_at_their_places(places: npt.NDArray[np.int64]) -> None:
    """With gaps, as between the halves of padded heads, and without."""
    _, w = sample(1, 40, 40)
    placed = np.zeros((64, 64), np.float32)
    placed[places[:, None], places] = w
    for weight_format in FORMATS:
        spread, whole = (aligned(packed_bytes(64, 64, weight_format)) for _ in range(2))
        pack(spread, [Part(w, places)], places, 64, 64, weight_format)
        pack(whole, [Part(placed, np.arange(64))], np.arange(64), 64, 64, weight_format)
        np.testing.assert_array_equal(spread, whole)


@pytest.mark.parametrize("k", [16, 64, 112])
def test_panels_are_laid_out_as_described(k: int) -> None:
    """Whole 32-bit words of 16 channels side by side, also if the words of a row are no multiple of 16."""
    _, w = sample(1, 32, k)
    formats: list[tuple[WeightFormat, npt.NDArray[Any]]] = [("float32", w), ("bfloat16", bfloat16_bits(w))]
    for weight_format, rows in formats:
        packed = aligned(packed_bytes(32, k, weight_format))
        pack(packed, [Part(w, np.arange(32))], np.arange(k), 32, k, weight_format)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(2, 16, -1)
        np.testing.assert_array_equal(packed.view(np.uint32), words.transpose(0, 2, 1).reshape(-1))


def test_rows_may_go_to_chunks_in_any_order() -> None:
    """As those of rotary heads do, whose pairs are brought together."""
    _, w = sample(1, 2 * CHUNK, 32)
    places = np.random.default_rng(1).permutation(2 * CHUNK)
    placed = np.empty_like(w)
    placed[places] = w
    target = aligned(packed_bytes(2 * CHUNK, 32, "bfloat16"))
    pack(target, [Part(w, places)], np.arange(32), 2 * CHUNK, 32, "bfloat16")
    np.testing.assert_array_equal(target, packed_weights(placed, "bfloat16"))


def test_chunks_may_be_packed_in_any_order() -> None:
    _, w = sample(1, 3 * CHUNK - 70, 64)
    channels = padded(len(w))

    def backwards(function: Callable[[int], None], starts: Iterable[int]) -> Iterable[None]:
        return map(function, reversed(list(starts)))

    for weight_format in FORMATS:
        targets = [aligned(packed_bytes(channels, 64, weight_format)) for _ in range(2)]
        pack(targets[0], [Part(w, np.arange(len(w)))], np.arange(64), channels, 64, weight_format)
        pack(targets[1], [Part(w, np.arange(len(w)))], np.arange(64), channels, 64, weight_format, backwards)
        np.testing.assert_array_equal(targets[0], targets[1])


def test_extreme_int8_sums_do_not_overflow() -> None:
    k = 65_536
    x, w = np.ones((1, k), np.float32), np.ones((64, k), np.float32)
    np.testing.assert_allclose(run(x, w, "int8"), k, rtol=1e-6)
    np.testing.assert_allclose(run(-x, w, "int8"), -k, rtol=1e-6)
    x[0, :100] = 640  # wide, and as large as an integer can be
    exact = gemm_reference(x, w[:1], "int8")
    np.testing.assert_allclose(run(x, w, "int8"), np.repeat(exact, 64, axis=1), rtol=1e-6)


@pytest.mark.parametrize("weight_format", ["int4", "int4-128"])
def test_int4_weights_are_packed_as_defined(weight_format: WeightFormat) -> None:
    """float32 and float64 may choose differently between tries that are equally good to 1e-6."""
    w = np.random.default_rng(4).standard_t(5, (200, 256)).astype(np.float32)
    w[3, :40] = 0
    w[:, 70] *= 20
    packed, defined = unpacked_int4(w, weight_format), rounded_weights(w, weight_format)
    assert (np.abs(packed - defined) <= 1e-6 * np.abs(w).max()).mean() > 0.99
    errors = [((rounded - w) ** 2).sum() for rounded in (packed, defined)]
    assert errors[0] <= errors[1] * (1 + 1e-4)
    assert not packed[3, :32].any()
    groups = w.reshape(200, -1, 128 if weight_format == "int4-128" else 32)
    plain = np.maximum(np.abs(groups).max(axis=2, keepdims=True), 1e-20) / 7
    assert errors[0] < 0.83 * ((np.rint(groups / plain) * plain - groups) ** 2).sum()


def outlier_error(weight_format: WeightFormat, *, split: bool = True) -> float:
    """Relative error of a product against the unrounded one, when 3 of 768 channels are 30 times as large."""
    x, w = sample(8, 128, 768, seed=5)
    x[:, [17, 400, 401]] *= 30
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    if split:
        result = run(x, w, weight_format).astype(np.float64)
    else:  # one plain scale per row
        result = round_to_int8(x) @ rounded_weights(w, weight_format).T
    return float(np.linalg.norm(result - exact) / np.linalg.norm(exact))


def test_outlier_channels_do_not_spoil_the_other_activations() -> None:
    assert outlier_error("int8") < 0.015
    assert outlier_error("int8", split=False) > 0.03  # what a plain scale would lose


@pytest.mark.parametrize("rows", [1, 5, 7])
def test_wide_quads_are_exact(rows: int) -> None:
    """Rows with and without wide values, and one with too many of them, equal the integer definition."""
    x, w = sample(rows, 70, 512, seed=6)
    x[0, [0, 3, 255, 511]] = [1000, -1000, 1000, 3]
    if rows > 4:
        x[2, 100] = 1e6
        x[4, ::16] *= 500  # a quarter of the quads: a plain scale
    q, _ = quantise_reference(x[0])
    assert np.abs(q).max() > 4000
    error = np.abs(run(x, w, "int8") - gemm_reference(x, w, "int8"))
    assert (error <= bound(x, w, "int8")).all()
    if rows > 4:
        assert np.abs(quantise_reference(x[4])[0]).max() == 127
