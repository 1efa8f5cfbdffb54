"""The operations that the definitions of the decoder and the encoder share, in plain float32 numpy."""

import numpy as np

from ...kernels.activation.reference import activation_reference
from ..checkpoint.rope import Float32Array
from ..checkpoint.safetensors import WeightArray, to_float32
from ..checkpoint.stored import float_part


def activated(name: str, x: Float32Array) -> Float32Array:
    return activation_reference(name, x).astype(np.float32)


def rotate(heads: Float32Array, tables: Float32Array) -> Float32Array:
    """Rotate pairs (j, j + half) of every head of [tokens, heads, head_dim] by the angles of its position."""
    half = heads.shape[-1] // 2
    cos, sin = tables[:, None, :half], tables[:, None, half:]
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1, dtype=np.float32)


def softmax(scores: Float32Array) -> Float32Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Float32Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def capped(values: Float32Array, cap: float | None) -> Float32Array:
    return values if cap is None else np.float32(cap) * np.tanh(values / np.float32(cap))


def linear(values: Float32Array, weight: WeightArray, bias: WeightArray | None) -> Float32Array:
    """`weight` may also be a StoredMatrix, where the weights of a layer have one."""
    product: Float32Array = values @ float_part(weight, 0, len(weight)).T
    return product if bias is None else product + to_float32(bias)
