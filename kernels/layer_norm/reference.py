"""Layer normalisation: (x - mean) / sqrt(variance + eps) * weight + shift over the last axis (arXiv:1607.06450)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def layer_norm_reference(x: npt.ArrayLike, weight: npt.ArrayLike, shift: npt.ArrayLike, eps: float) -> FloatArray:
    """In float64."""
    values: FloatArray = np.asarray(x, np.float64)
    centred = values - values.mean(axis=-1, keepdims=True)
    variance: FloatArray = np.mean(centred * centred, axis=-1, keepdims=True)
    normalised: FloatArray = centred / np.sqrt(variance + eps) * np.asarray(weight, np.float64)
    return normalised + np.asarray(shift, np.float64)
