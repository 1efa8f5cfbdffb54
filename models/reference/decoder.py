"""The definition of the decoder: full-sequence logits in plain float32 numpy. No cache, no batch, no speed.

Every runner is compared with this, and this with transformers. To learn the model, read this file.
"""

import numpy as np

from ...kernels.experts.reference import route_reference
from ...kernels.silu_mul.reference import silu_mul_reference
from ..checkpoint.experts import ExpertSpec, ExpertWeights, MlpWeights
from ..checkpoint.rope import Float32Array, query_scales, rope_tables
from ..checkpoint.safetensors import WeightArray, to_float32
from ..checkpoint.spec import LayerSpec, ModelSpec
from ..checkpoint.weights import DecoderWeights, LayerWeights, NormWeights
from .latent import latent_heads
from .operations import activated, capped, linear, rotate, softmax


def reference_logits(spec: ModelSpec, weights: DecoderWeights, tokens: list[int]) -> Float32Array:
    """[len(tokens), vocab]: row i predicts token i + 1."""
    hidden = reference_states(spec, weights, tokens)
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return capped(linear(hidden, head, None) * np.float32(spec.logit_factor), spec.logit_cap)


def reference_states(spec: ModelSpec, weights: DecoderWeights, tokens: list[int]) -> Float32Array:
    """[len(tokens), hidden], after the last norm."""
    hidden = to_float32(weights.embedding[np.asarray(tokens)]) * np.float32(spec.embedding_factor)
    for kind, layer in zip(spec.layers, weights.layers, strict=True):
        entered = norm(spec, hidden, layer.input_norm)
        hidden = hidden + norm(spec, attention(spec, kind, layer, entered), layer.attention_out_norm)
        entered = entered if spec.parallel else norm(spec, hidden, layer.mlp_norm)
        hidden = hidden + norm(spec, feed_forward(spec, layer, entered), layer.mlp_out_norm)
    return norm(spec, hidden, weights.final_norm)


def attention(spec: ModelSpec, kind: LayerSpec, layer: LayerWeights, hidden: Float32Array) -> Float32Array:
    """Causal attention, grouped heads: query head h reads kv head h // (query heads / kv heads)."""
    length = len(hidden)
    if spec.latent is not None and layer.latent is not None:
        q, k, v = latent_heads(spec, spec.latent, kind, layer.latent, hidden)
    else:
        q, k, v = grouped_heads(spec, kind, layer, hidden)
    group = q.shape[1] // k.shape[1]
    scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1)) * np.float32(spec.score_scale)
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    visible = (distance >= 0) & (distance < (kind.window or length))
    scores = np.where(visible, capped(scores, spec.score_cap), np.float32(-np.inf))
    if spec.sinks and layer.sinks is not None:
        sinks = np.broadcast_to(to_float32(layer.sinks)[:, None, None], (len(scores), length, 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    probabilities = softmax(scores)[..., :length]
    mixed: Float32Array = np.einsum("hqk,khd->qhd", probabilities, np.repeat(v, group, axis=1)).reshape(length, -1)
    return linear(mixed, layer.o, layer.o_bias)


def grouped_heads(
    spec: ModelSpec, kind: LayerSpec, layer: LayerWeights, hidden: Float32Array
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Queries, keys and values, [tokens, heads or kv heads, head_dim]."""
    length, heads, kv_heads, size = len(hidden), spec.num_heads, spec.num_kv_heads, spec.head_dim
    q = head_norm(spec, linear(hidden, layer.q, layer.q_bias).reshape(length, heads, size), layer.q_norm)
    k = head_norm(spec, linear(hidden, layer.k, layer.k_bias).reshape(length, kv_heads, size), layer.k_norm)
    v = linear(hidden, layer.v, layer.v_bias).reshape(length, kv_heads, size)
    tables = rope_tables(kind.rope, size, length, spec.rotary_dim)
    q, k = (rotate(part[..., spec.rotary_order], tables) for part in (q, k))
    return q * query_scales(kind.rope, length)[:, None, None], k, v


def feed_forward(spec: ModelSpec, layer: LayerWeights, hidden: Float32Array) -> Float32Array:
    if spec.experts is not None and layer.experts is not None:
        return mixture(spec.experts, layer.experts, hidden)
    return mlp(spec, layer, hidden)


def mixture(spec: ExpertSpec, weights: ExpertWeights, hidden: Float32Array) -> Float32Array:
    """Every token's experts, weighted, and the shared expert."""
    logits = linear(hidden, weights.router, weights.router_bias).astype(np.float64)
    correction = None if weights.correction is None else to_float32(weights.correction).astype(np.float64)
    chosen, shares = route_reference(spec.routing, logits, correction)
    total = np.zeros_like(hidden)
    for index, expert in enumerate(weights.experts):
        tokens, places = np.nonzero(chosen == index)
        result = expert_mlp(spec, expert, hidden[tokens])
        total[tokens] += result * shares[tokens, places, None].astype(np.float32)
    if weights.shared is not None:
        shared = expert_mlp(spec, weights.shared, hidden)
        if weights.shared_gate is not None:
            shared = shared / (1 + np.exp(-linear(hidden, weights.shared_gate, None)))
        total += shared
    return total


def expert_mlp(spec: ExpertSpec, weights: MlpWeights, hidden: Float32Array) -> Float32Array:
    gate, up = linear(hidden, weights.gate, weights.gate_bias), linear(hidden, weights.up, weights.up_bias)
    middle = silu_mul_reference(gate, up, spec.gate_limit, spec.gate_slope, spec.up_offset).astype(np.float32)
    return linear(middle, weights.down, weights.down_bias)


def mlp(spec: ModelSpec, layer: LayerWeights, hidden: Float32Array) -> Float32Array:
    up = linear(hidden, layer.up, layer.up_bias)
    if layer.gate is None:
        return linear(activated(spec.activation, up), layer.down, layer.down_bias)
    gate = activated(spec.activation, linear(hidden, layer.gate, layer.gate_bias))
    return linear(gate * up, layer.down, layer.down_bias)


def norm(spec: ModelSpec, values: Float32Array, weights: NormWeights | None) -> Float32Array:
    """RMSNorm or LayerNorm over the last axis; nothing where the spec has no norm."""
    if weights is None:
        return values
    scaled = normalised(spec, values, (-1,)) * to_float32(weights.gain)
    return scaled if weights.bias is None else scaled + to_float32(weights.bias)


def head_norm(spec: ModelSpec, heads: Float32Array, gains: WeightArray | None) -> Float32Array:
    """The norm of q or k, [tokens, heads, head_dim], over each head or over all of them."""
    if gains is None:
        return heads
    return normalised(spec, heads, (-2, -1) if spec.qk_norm == "row" else (-1,)) * to_float32(gains)


def normalised(spec: ModelSpec, values: Float32Array, axes: tuple[int, ...]) -> Float32Array:
    centred = values - values.mean(axis=axes, keepdims=True) if spec.layer_norm else values
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    result: Float32Array = centred / np.sqrt(variance + np.float32(spec.norm_eps))
    return result
