"""Logits times a factor, bounded by a soft cap (Gemma 2, arXiv:2408.00118): cap * tanh(factor * x / cap)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def logit_cap_reference(x: npt.ArrayLike, factor: float, cap: float | None) -> FloatArray:
    """In float64."""
    values: FloatArray = np.asarray(x, np.float64) * factor
    return values if cap is None else cap * np.tanh(values / cap)
