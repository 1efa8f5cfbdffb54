"""The activation between the two matrices of an MLP: f(x + bias), times a second projection where there is a gate.

gelu        x / 2 * (1 + erf(x / sqrt(2)))
gelu_tanh   x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
relu        max(x, 0)
relu2       max(x, 0) ** 2
silu        x / (1 + exp(-x))
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def gelu(x: FloatArray) -> FloatArray:
    errors = np.array([math.erf(value) for value in (x / math.sqrt(2)).ravel().tolist()]).reshape(x.shape)
    product: FloatArray = x / 2 * (1 + errors)
    return product


def gelu_tanh(x: FloatArray) -> FloatArray:
    tangent: FloatArray = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x / 2 * (1 + tangent)


def relu(x: FloatArray) -> FloatArray:
    positive: FloatArray = np.maximum(x, 0)
    return positive


def relu2(x: FloatArray) -> FloatArray:
    squared: FloatArray = np.maximum(x, 0) ** 2
    return squared


def silu(x: FloatArray) -> FloatArray:
    power: FloatArray = np.exp(np.minimum(-x, 700))  # beyond, the quotient is a denormal
    return x / (1 + power)


REFERENCES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": relu2,
    "silu": silu,
}


def activation_reference(name: str, x: npt.ArrayLike, factor: npt.ArrayLike = 1.0) -> FloatArray:
    """Elementwise, in float64."""
    values: FloatArray = np.asarray(x, np.float64)
    product: FloatArray = REFERENCES[name](values) * np.asarray(factor, np.float64)
    return product
