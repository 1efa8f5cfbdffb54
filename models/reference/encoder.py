"""The definition of the encoder: hidden states of one text in plain float32 numpy. No batch, no speed.

Every runner is compared with this, and this with transformers. To learn the model, read this file.
"""

import numpy as np

from ..checkpoint.rope import Float32Array, rope_tables
from ..checkpoint.safetensors import to_float32
from ..encoder.spec import EncoderLayerSpec, EncoderSpec
from ..encoder.weights import Affine, EncoderLayer, EncoderWeights
from .operations import activated, linear, rotate, softmax


def reference_hidden(
    spec: EncoderSpec, weights: EncoderWeights, tokens: list[int], token_types: list[int] | None = None
) -> Float32Array:
    """[len(tokens), hidden], after the last norm."""
    hidden = to_float32(weights.embedding[np.asarray(tokens)])
    if weights.types is not None:
        hidden = hidden + to_float32(weights.types)[np.asarray(token_types or [0] * len(tokens))]
    if weights.positions is not None:
        hidden = hidden + to_float32(weights.positions)[spec.first_position :][: len(tokens)]
    hidden = normed = layer_norm(hidden, weights.embedding_norm, spec.norm_eps)
    for index, (shape, layer) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        hidden = hidden + attention(spec, shape, layer, normed)
        normed = layer_norm(hidden, layer.mix_norm, spec.norm_eps)
        hidden = (normed if spec.norms_after else hidden) + mlp(spec, layer, normed)
        normed = layer_norm(hidden, layer.next_norm, spec.norm_eps)
        if spec.norms_after or index + 1 == len(spec.layers):
            hidden = normed
    return hidden


def attention(spec: EncoderSpec, shape: EncoderLayerSpec, layer: EncoderLayer, hidden: Float32Array) -> Float32Array:
    """Every token sees those within the layer's reach, before and after it."""
    length = len(hidden)
    q, k, v = (apply(hidden, part).reshape(length, spec.num_heads, spec.head_dim) for part in layer.qkv)
    if shape.rope is not None:
        tables = rope_tables(shape.rope, spec.head_dim, length)
        q, k = rotate(q, tables), rotate(k, tables)
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(spec.head_dim**-0.5)
    distance = np.abs(np.arange(length)[:, None] - np.arange(length)[None, :])
    probabilities = softmax(np.where(distance <= shape.reach, scores, np.float32(-np.inf)))
    mixed: Float32Array = np.einsum("hqk,khd->qhd", probabilities, v).reshape(length, -1)
    return apply(mixed, layer.out)


def mlp(spec: EncoderSpec, layer: EncoderLayer, hidden: Float32Array) -> Float32Array:
    inner = activated(spec.activation, apply(hidden, layer.up[0]))
    for part in layer.up[1:]:
        inner = inner * apply(hidden, part)
    return apply(inner, layer.down)


def layer_norm(values: Float32Array, norm: Affine, eps: float) -> Float32Array:
    centred = values - values.mean(axis=-1, keepdims=True)
    variance: Float32Array = np.mean(centred * centred, axis=-1, keepdims=True)
    normalised: Float32Array = centred / np.sqrt(variance + np.float32(eps)) * to_float32(norm.weight)
    return normalised if norm.bias is None else normalised + to_float32(norm.bias)


def apply(values: Float32Array, matrix: Affine) -> Float32Array:
    return linear(values, matrix.weight, matrix.bias)
