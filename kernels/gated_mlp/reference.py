"""The activations of MLPs, by their names in `ModelSpec`: the definition, in float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def gated_reference(name: str, x: npt.ArrayLike) -> FloatArray:
    """Elementwise. "gelu" is exact; "gelu_tanh" is the approximation of arXiv 1606.08415, section 2."""
    values: FloatArray = np.asarray(x, np.float64)
    match name:
        case "silu":
            result = values / (1 + np.exp(-values))
        case "gelu":
            result = values * (1 + np.vectorize(math.erf)(values * math.sqrt(0.5))) / 2
        case "gelu_tanh":
            result = values * (1 + np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3))) / 2
        case "relu":
            result = np.maximum(values, 0)
        case "relu2":
            result = np.maximum(values, 0) ** 2
        case _:
            raise ValueError(f"activation {name!r}: not defined")
    return np.asarray(result, np.float64)
