"""Rotary position embedding of one head, in the "rotate half" convention: dimension i turns with dimension i + size /
2.

    y[i]            = x[i] * cos[i] - x[i + size/2] * sin[i]
    y[i + size/2]   = x[i + size/2] * cos[i] + x[i] * sin[i]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def rope_reference(x: npt.ArrayLike, table_row: npt.ArrayLike) -> FloatArray:
    """x [..., size]; table_row [..., size] has the cosines in its first half and the sines in its second."""
    values: FloatArray = np.asarray(x, np.float64)
    low, high = np.split(values, 2, axis=-1)
    cos, sin = np.split(np.asarray(table_row, np.float64), 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
