"""From the hidden states of a text to its vector: pooling, dense layers, and what is done with the last one's values.

Plain numpy, one text at a time, in a fixed order of sums (einsum, not BLAS, whose order depends on sizes and threads):
so a text's vector is the same whatever else is in its step. It is a thousandth of the encoder's own work.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ...kernels.activation.reference import activation_reference
from ...kernels.layer_norm.reference import layer_norm_reference

FloatArray = npt.NDArray[np.float32]
Pooling = Literal["mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"]
Ending = Literal["as is", "normalise", "softmax", "sigmoid"]


class Dense(Struct, frozen=True):
    """weight [out, in]; the norm, if any, is applied to the activation's result."""

    weight: FloatArray
    bias: FloatArray | None
    activation: str
    norm: tuple[FloatArray, FloatArray | None, float] | None = None  # weight, shift, epsilon


class Head(Struct, frozen=True, kw_only=True):
    """What follows the encoder."""

    pooling: Pooling
    layers: tuple[Dense, ...] = ()
    ending: Ending = "as is"

    def size(self, hidden: int) -> int:
        """Values of a vector."""
        return len(self.layers[-1].weight) if self.layers else hidden


def apply_head(head: Head, hidden: FloatArray) -> FloatArray:
    """The vector of one text; hidden: [tokens, size]."""
    vector = pool(head.pooling, hidden)
    for layer in head.layers:
        vector = np.einsum("oi,i->o", layer.weight, vector)
        if layer.bias is not None:
            vector = vector + layer.bias
        vector = _activated(layer.activation, vector)
        if layer.norm is not None:
            vector = _normed(vector, *layer.norm)
    return end(head.ending, vector)


def pool(pooling: Pooling, hidden: FloatArray) -> FloatArray:
    """One vector of [tokens, size], as sentence-transformers' Pooling does it."""
    total: FloatArray = hidden.sum(axis=0)
    match pooling:
        case "mean":
            return total / np.float32(len(hidden))
        case "cls":
            first: FloatArray = hidden[0].copy()
            return first
        case "lasttoken":
            last: FloatArray = hidden[-1].copy()
            return last
        case "max":
            largest: FloatArray = hidden.max(axis=0)
            return largest
        case "mean_sqrt_len_tokens":
            return total / np.float32(len(hidden) ** 0.5)
        case "weightedmean":
            weights = np.arange(1, len(hidden) + 1, dtype=np.float32)
            weighted: FloatArray = (hidden * weights[:, None]).sum(axis=0) / weights.sum()
            return weighted


def end(ending: Ending, vector: FloatArray) -> FloatArray:
    """The last step. A vector of zeros stays one."""
    match ending:
        case "as is":
            return vector
        case "normalise":
            length = np.sqrt(np.einsum("i,i->", vector, vector, dtype=np.float64))
            return (vector / max(float(length), 1e-12)).astype(np.float32)
        case "softmax":
            powers: FloatArray = np.exp(vector - vector.max())
            shares: FloatArray = powers / powers.sum()
            return shares
        case "sigmoid":
            return _activated("sigmoid", vector)


def _normed(vector: FloatArray, weight: FloatArray, shift: FloatArray | None, eps: float) -> FloatArray:
    normed = layer_norm_reference(vector, weight, 0.0 if shift is None else shift, eps)
    return normed.astype(np.float32)


def _activated(name: str, x: FloatArray) -> FloatArray:
    values: FloatArray
    match name:
        case "identity":
            return x
        case "tanh":
            values = np.tanh(x)
        case "sigmoid":
            values = np.reciprocal(1 + np.exp(-np.clip(x, -80, 80)))
        case _:
            values = activation_reference(name, x).astype(np.float32)
    return values
