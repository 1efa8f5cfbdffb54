"""A rotated head against the definition: any head size, with bias and norm."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope.cpu import head_positions, padded_head, rope_head
from triolet.kernels.rope.reference import rope_reference
from triolet.kernels.simd.formats import CACHE_TAGS, CacheTag

EPS, FACTOR = 1e-6, 0.375


@compiled
def call(
    tag: CacheTag, x: int, bias: int, gain: int, row: int, row_bias: int, vectors: int, rotation: int, half: int,
    out: int, centred: int, size: np.float32, eps: np.float32, factor: np.float32,
) -> None:  # fmt: skip
    rope_head(tag, x, bias, gain, row, row_bias, vectors, rotation, half, out, centred, size, eps, factor)


def spread(values: np.ndarray, size: int) -> np.ndarray:
    wide = np.zeros(padded_head(size), np.float32)
    wide[head_positions(size)] = values
    return wide


@pytest.mark.parametrize("size", [2, 8, 10, 20, 64, 80, 128, 256])
@pytest.mark.parametrize("norm", ["none", "head", "layer norm", "row"])
def test_matches_the_definition(size: int, norm: str) -> None:
    """The second of three heads; over the whole row, the norm sees the others too."""
    rng = np.random.default_rng(size)
    x, bias = rng.standard_normal((2, 3, size)).astype(np.float32)
    gain = rng.standard_normal(size).astype(np.float32)
    angles = rng.uniform(-3, 3, size // 2)
    table = np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32)
    wide_x, wide_bias = (np.concatenate([spread(head, size) for head in heads]) for heads in (x, bias))
    wide_gain, wide_table = spread(np.ones(size) if norm == "none" else gain, size), spread(table, size)
    result, padded = np.zeros(padded_head(size), np.float32), padded_head(size)
    heads = {"none": 0, "row": 3}.get(norm, 1)
    first = 0 if norm == "row" else padded * 4
    call(
        CACHE_TAGS["float32"], wide_x.ctypes.data + padded * 4, wide_bias.ctypes.data + padded * 4,
        wide_gain.ctypes.data, wide_x.ctypes.data + first, wide_bias.ctypes.data + first, heads * padded // 16,
        wide_table.ctypes.data, padded // 2, result.ctypes.data, int(norm == "layer norm"),
        np.float32(max(heads, 1) * size), np.float32(EPS), np.float32(FACTOR),
    )  # fmt: skip
    whole, ones = (x + bias).astype(np.float64), np.ones(3 * size)
    before = {
        "none": whole[1],
        "head": rms_norm_reference(whole[1], gain, EPS),
        "layer norm": layer_norm_reference(whole[1], gain, np.zeros(size), EPS),
        "row": rms_norm_reference(whole.reshape(-1), ones, EPS).reshape(3, size)[1] * gain,
    }[norm]
    wanted = rope_reference(before, table) * FACTOR
    # Two products of at most |x| each, about ten roundings (norm included) on the way; where a mean is subtracted from
    # two values only, it cancels most of them.
    slack = (40 if norm == "layer norm" else 10) * 2.0**-24 * 2 * np.abs(before).max() * FACTOR
    assert (np.abs(result[head_positions(size)] - wanted) <= slack).all()
    assert np.count_nonzero(result) <= size  # the padding stays zero
    one_step_on = np.concatenate([np.cos(angles + 0.02), np.sin(angles + 0.02)])
    assert (np.abs(result[head_positions(size)] - rope_reference(before, one_step_on) * FACTOR) > slack).any()
