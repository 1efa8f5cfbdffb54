"""y[m, n] = sum_k x[m, k] * w[n, k]: the definition, in float64, with the roundings of each weight format.

float32    none
bfloat16   x and w rounded to bfloat16
int8       w: symmetric integers with one scale per channel n; x: integers per row m (quantise/reference.py)
int4       w: integers from -8 to 7 times a bfloat16 scale, per channel and group of 32 (int4-128: of 128) inputs;
           x: integers per row and group of 32
stored     w: as its checkpoint stores it (codes.py), or 16-bit integers per group of 32 (pack_stored.py); x: as int4's
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quantise.reference import quantise_groups_reference, quantise_reference
from ..simd.formats import GROUP
from .pack_int4 import NOTHING, TRIES

Float64Array = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]


def gemm_reference(x: npt.ArrayLike, w: npt.ArrayLike, weight_format: str) -> Float64Array:
    """From [M, K] and [N, K] to [M, N]."""
    left, right = np.asarray(x, np.float32), np.asarray(w, np.float32)
    return rounded_activations(left, weight_format) @ rounded_weights(right, weight_format).T


def rounded_activations(x: Float32Array, weight_format: str) -> Float64Array:
    if weight_format == "int8":
        rows = [quantise_reference(row) for row in _padded(x, GROUP)]
        return np.stack([q.astype(np.float64) * scale for q, scale in rows])[:, : x.shape[1]]
    if weight_format.startswith("int4") or weight_format == "stored":
        groups = [quantise_groups_reference(row) for row in _padded(x, GROUP)]
        return np.stack([q.astype(np.float64) * np.repeat(scales, GROUP) for q, scales in groups])[:, : x.shape[1]]
    return (round_to_bfloat16(x) if weight_format == "bfloat16" else x).astype(np.float64)


def rounded_weights(w: Float32Array, weight_format: str) -> Float64Array:
    if weight_format == "int8":
        return round_to_int8(w)
    if weight_format.startswith("int4"):
        group = 128 if weight_format == "int4-128" else GROUP
        groups = _padded(w, group).reshape(-1, group).astype(np.float64)
        return round_to_int4(groups).reshape(len(w), -1)[:, : w.shape[1]]
    return (round_to_bfloat16(w) if weight_format == "bfloat16" else w).astype(np.float64)


def _padded(values: Float32Array, multiple: int) -> Float32Array:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % multiple)))


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The nearest bfloat16 values (ties to even), as float32."""
    bits = values.view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32).reshape(values.shape)


def round_to_int8(values: npt.NDArray[np.float32]) -> Float64Array:
    """Each row as integers in [-127, 127] times the row's scale, max |row| / 127."""
    scale = np.maximum(np.abs(values.astype(np.float64)).max(axis=-1, keepdims=True), 1e-20) / 127
    quantised: Float64Array = np.rint(values / scale) * scale
    return quantised


def round_to_int4(groups: Float64Array) -> Float64Array:
    """Each row is a group: integers in [-8, 7] times its bfloat16 scale, the best of the tries of pack_int4.py."""
    widest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], 1)
    widest[np.abs(widest) <= NOTHING] = 1
    best_gain, scale = np.full((len(groups), 1), -1.0), np.zeros((len(groups), 1))
    for to in TRIES:
        q = np.clip(np.rint(groups * (to / widest)), -8, 7)
        products, squares = (groups * q).sum(1, keepdims=True), np.maximum((q * q).sum(1, keepdims=True), 1)
        gain = products**2 / squares
        scale = np.where(gain > best_gain, products / squares, scale)
        best_gain = np.maximum(gain, best_gain)
    scale = round_to_bfloat16(scale.astype(np.float32)).astype(np.float64)
    nothing = np.abs(scale) <= NOTHING
    q = np.clip(np.rint(groups / np.where(nothing, 1, scale)), -8, 7)
    return np.where(nothing, 0.0, q * scale)
