"""A rotated head against the definition: any head size, with bias and norm."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.kernels.compile_cache import compiled
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope.cpu import head_positions, padded_head, rope_head
from triolet.kernels.rope.reference import rope_reference
from triolet.kernels.simd.formats import CACHE_TAGS, CacheTag

EPS, FACTOR = 1e-6, 0.375


@compiled
def call(
    tag: CacheTag, x: int, bias: int, weight: int, normalise: int, rotation: int, half: int, out: int,
    size: np.float32, eps: np.float32, factor: np.float32,
) -> None:  # fmt: skip
    rope_head(tag, x, bias, weight, normalise, rotation, half, out, size, eps, factor)


def spread(values: np.ndarray, size: int) -> np.ndarray:
    wide = np.zeros(padded_head(size), np.float32)
    wide[head_positions(size)] = values
    return wide


@pytest.mark.parametrize("size", [2, 8, 10, 20, 64, 80, 128, 256])
@pytest.mark.parametrize("normalise", [False, True])
def test_matches_the_definition(size: int, normalise: bool) -> None:
    rng = np.random.default_rng(size)
    x, bias, gain = rng.standard_normal((3, size)).astype(np.float32)
    angles = rng.uniform(-3, 3, size // 2)
    table = np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32)
    arrays = [spread(values, size) for values in (x, bias, gain if normalise else np.ones(size), table)]
    wide_x, wide_bias, wide_gain, wide_table = (array.ctypes.data for array in arrays)
    result = np.zeros(padded_head(size), np.float32)
    call(
        CACHE_TAGS["float32"], wide_x, wide_bias, wide_gain, int(normalise), wide_table, padded_head(size) // 2,
        result.ctypes.data, np.float32(size), np.float32(EPS), np.float32(FACTOR),
    )  # fmt: skip
    before = rms_norm_reference(x + bias, gain, EPS) if normalise else x + bias
    wanted = rope_reference(before, table) * FACTOR
    # Two products of at most |x| each, about ten roundings (norm included) on the way.
    slack = 10 * 2.0**-24 * 2 * np.abs(before).max() * FACTOR
    assert (np.abs(result[head_positions(size)] - wanted) <= slack).all()
    assert np.count_nonzero(result) <= size  # the padding stays zero
    one_step_on = np.concatenate([np.cos(angles + 0.02), np.sin(angles + 0.02)])
    assert (np.abs(result[head_positions(size)] - rope_reference(before, one_step_on) * FACTOR) > slack).any()
