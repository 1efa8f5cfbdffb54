"""The gate of the MLP: silu(gate) * up, with silu(x) = x / (1 + exp(-x))."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def silu_mul_reference(gate: npt.ArrayLike, up: npt.ArrayLike) -> FloatArray:
    """Elementwise, in float64."""
    gates: FloatArray = np.asarray(gate, np.float64)
    product: FloatArray = gates / (1 + np.exp(-gates)) * np.asarray(up, np.float64)
    return product
