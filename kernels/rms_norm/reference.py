"""RMSNorm over the last axis: x / sqrt(mean(x**2) + eps) * weight (arXiv:1910.07467)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def rms_norm_reference(x: npt.ArrayLike, weight: npt.ArrayLike, eps: float) -> FloatArray:
    """In float64."""
    values: FloatArray = np.asarray(x, np.float64)
    square: FloatArray = np.mean(values * values, axis=-1, keepdims=True)
    normalised: FloatArray = values / np.sqrt(square + eps) * np.asarray(weight, np.float64)
    return normalised
