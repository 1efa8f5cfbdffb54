"""The definition of the decoder: full-sequence logits in plain float32 numpy. No cache, no batch, no speed.

Every runner is compared with this, and this with transformers. To learn the model, read this file.
"""

import numpy as np

from .checkpoint.rope import Float32Array, rope_tables
from .checkpoint.safetensors import WeightArray
from .checkpoint.spec import ModelSpec
from .checkpoint.weights import DecoderWeights, LayerWeights


def reference_logits(spec: ModelSpec, weights: DecoderWeights, tokens: list[int]) -> Float32Array:
    """[len(tokens), vocab]: row i predicts token i + 1."""
    tables = rope_tables(spec.rope, spec.head_dim, len(tokens))
    hidden = to_float32(weights.embedding[np.asarray(tokens)])
    for layer in weights.layers:
        hidden = hidden + attention(spec, layer, rms_norm(hidden, layer.input_norm, spec.norm_eps), tables)
        hidden = hidden + mlp(layer, rms_norm(hidden, layer.post_norm, spec.norm_eps))
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return linear(rms_norm(hidden, weights.final_norm, spec.norm_eps), head, None)


def attention(spec: ModelSpec, layer: LayerWeights, hidden: Float32Array, tables: Float32Array) -> Float32Array:
    """Causal attention, grouped heads: query head h reads kv head h // (num_heads / num_kv_heads)."""
    length = len(hidden)
    q = linear(hidden, layer.q, layer.q_bias).reshape(length, spec.num_heads, spec.head_dim)
    k = linear(hidden, layer.k, layer.k_bias).reshape(length, spec.num_kv_heads, spec.head_dim)
    v = linear(hidden, layer.v, layer.v_bias).reshape(length, spec.num_kv_heads, spec.head_dim)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = rms_norm(q, layer.q_norm, spec.norm_eps), rms_norm(k, layer.k_norm, spec.norm_eps)
    group = spec.num_heads // spec.num_kv_heads
    q, k, v = rotate(q, tables), np.repeat(rotate(k, tables), group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(spec.head_dim**-0.5)
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    visible = (distance >= 0) & (distance < (spec.sliding_window or length))
    probabilities = softmax(np.where(visible, scores, np.float32(-np.inf)))
    mixed: Float32Array = np.einsum("hqk,khd->qhd", probabilities, v).reshape(length, -1)
    return linear(mixed, layer.o, None)


def mlp(layer: LayerWeights, hidden: Float32Array) -> Float32Array:
    gate = linear(hidden, layer.gate, None)
    silu = np.divide(gate, 1 + np.exp(-gate), dtype=np.float32)
    return linear(silu * linear(hidden, layer.up, None), layer.down, None)


def rotate(heads: Float32Array, tables: Float32Array) -> Float32Array:
    """Rotate pairs (j, j + half) of every head of [tokens, heads, head_dim] by the angles of its position."""
    half = heads.shape[-1] // 2
    cos, sin = tables[:, None, :half], tables[:, None, half:]
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1, dtype=np.float32)


def rms_norm(values: Float32Array, weight: WeightArray, eps: float) -> Float32Array:
    mean_square = np.mean(values * values, axis=-1, keepdims=True)
    normalised: Float32Array = values / np.sqrt(mean_square + np.float32(eps)) * to_float32(weight)
    return normalised


def softmax(scores: Float32Array) -> Float32Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: Float32Array = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def linear(values: Float32Array, weight: WeightArray, bias: WeightArray | None) -> Float32Array:
    product: Float32Array = values @ to_float32(weight).T
    return product if bias is None else product + to_float32(bias)


def to_float32(array: WeightArray) -> Float32Array:
    """bfloat16 is the upper half of a float32, so widening is a shift."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)
