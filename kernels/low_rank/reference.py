"""LoRA's part of a projection, by definition: each row's adapter adds scale * B A x (Hu et al., arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def low_rank_reference(
    x: npt.ArrayLike, adapters: npt.ArrayLike, a: Sequence[npt.ArrayLike], b: Sequence[npt.ArrayLike]
) -> Float64Array:
    """[rows, out] in float64 of x [rows, in]; adapters [rows] counts from 1, 0 is a row without one.

    Adapter n has a[n - 1] [rank, in] and b[n - 1] [out, rank], which includes the scale.
    """
    rows = np.asarray(x, np.float64)
    result = np.zeros((len(rows), len(np.asarray(b[0]))))
    for row, number in enumerate(np.asarray(adapters)):
        if number:
            down, up = np.asarray(a[number - 1], np.float64), np.asarray(b[number - 1], np.float64)
            result[row] = up @ (down @ rows[row])
    return result
