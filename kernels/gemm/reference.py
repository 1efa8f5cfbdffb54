"""y[m, n] = sum_k x[m, k] * w[n, k]: the definition, in float64, with the roundings that each weight format prescribes.

    float32    none
    bfloat16   x and w rounded to bfloat16
    int8       w: symmetric integers of one scale per channel n; x: the same per row m
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def gemm_reference(x: npt.ArrayLike, w: npt.ArrayLike, weight_format: str) -> Float64Array:
    """[M, K] and [N, K] to [M, N]."""
    left, right = (_rounded(np.asarray(values, np.float32), weight_format) for values in (x, w))
    return left @ right.T


def _rounded(values: npt.NDArray[np.float32], weight_format: str) -> Float64Array:
    if weight_format == "int8":
        return round_to_int8(values)
    return (round_to_bfloat16(values) if weight_format == "bfloat16" else values).astype(np.float64)


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
