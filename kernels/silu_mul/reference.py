"""The gate of the MLP: silu(gate) * up, with silu(x) = x / (1 + exp(-x)).

Clamped, as gpt-oss has it: gate * sigmoid(slope * gate) * (up + offset), of gates at most `limit` and ups within +- it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def silu_mul_reference(
    gate: npt.ArrayLike, up: npt.ArrayLike, limit: float = math.inf, slope: float = 1.0, offset: float = 0.0
) -> FloatArray:
    """Elementwise, in float64."""
    gates: FloatArray = np.minimum(np.asarray(gate, np.float64), limit)
    ups: FloatArray = np.clip(np.asarray(up, np.float64), -limit, limit)
    product: FloatArray = gates / (1 + np.exp(-slope * gates)) * (ups + offset)
    return product
