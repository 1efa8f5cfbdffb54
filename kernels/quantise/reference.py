"""Dynamic symmetric int8 quantisation of one row of activations: the definition.

scale = max |x| / 127 (at least 1e-20 / 127, so that a row of zeros stays zeros), q = round(x / scale), ties to even;
correction = 128 * sum(q), which undoes the 128 added to the unsigned weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SMALLEST_MAXIMUM = 1e-20


def quantise_reference(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], np.float32, int]:
    """One row to (q, scale, correction)."""
    largest = np.float32(max(float(np.abs(x).max()), SMALLEST_MAXIMUM))
    q = np.rint(x * (np.float32(127) / largest)).astype(np.int8)
    return q, np.float32(largest / np.float32(127)), 128 * int(q.astype(np.int64).sum())
