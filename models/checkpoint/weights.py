"""Loads the weights of one decoder from a checkpoint's tensors. Every name is expected, every shape checked.

Each expected tensor is popped. Missing and left-over tensors are both refused: the checkpoint is then not the model
that its config.json describes. Only these may be left over:
- `….rotary_emb.inv_freq`: a buffer in old checkpoints; the tables come from the config,
- `lm_head.weight` of a tied model, if it equals the embedding bit for bit,
- `….self_attn.o_proj.bias` that is all zeros (Llama's and Qwen3's `attention_bias` adds one; the decoder has none).
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..errors import CheckpointError, UnsupportedModel
from .checkpoint import Checkpoint
from .safetensors import WeightArray
from .spec import ModelSpec


class LayerWeights(Struct, frozen=True, kw_only=True):
    """One decoder layer. Matrices are [out, in], as in the checkpoint."""

    q: WeightArray
    k: WeightArray
    v: WeightArray
    o: WeightArray
    gate: WeightArray
    up: WeightArray
    down: WeightArray
    input_norm: WeightArray
    post_norm: WeightArray
    q_bias: WeightArray | None = None
    k_bias: WeightArray | None = None
    v_bias: WeightArray | None = None
    q_norm: WeightArray | None = None
    k_norm: WeightArray | None = None


class DecoderWeights(Struct, frozen=True, kw_only=True):
    """Every array is float32, or uint16 with bfloat16 bits; it may be memory-mapped and read-only."""

    embedding: WeightArray  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: WeightArray
    lm_head: WeightArray | None  # [vocab, hidden]; None when tied


def load_weights(checkpoint: Checkpoint, report: ReportProgress = ignore_progress) -> DecoderWeights:
    """Pop every weight of the checkpoint's spec."""
    spec = checkpoint.spec
    left = set(checkpoint.tensor_names)

    def take(name: str, *shape: int) -> WeightArray:
        if name not in left:
            raise CheckpointError(name, None, f"this weight is missing; a {spec.family} model of this config needs it")
        found = checkpoint.tensor_shape(name)
        if found != shape:
            raise CheckpointError(name, found, f"config.json implies the shape {shape}")
        left.remove(name)
        return checkpoint.read_tensor(name)

    weights = make_weights(spec, take, report)
    _refuse_leftovers(checkpoint, left, weights.embedding)
    return weights


def make_weights(
    spec: ModelSpec, take: Callable[..., WeightArray], report: ReportProgress = ignore_progress
) -> DecoderWeights:
    """The decoder of a spec, each weight from `take(name, *shape)`."""
    embedding = take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    layers: list[LayerWeights] = []
    for index in range(spec.num_layers):
        layers.append(_take_layer(take, spec, f"model.layers.{index}."))
        report(LoadProgress(stage="reading weights", done=index + 1, total=spec.num_layers))
    final_norm = take("model.norm.weight", spec.hidden_size)
    lm_head = None if spec.tied_embeddings else take("lm_head.weight", spec.vocab_size, spec.hidden_size)
    return DecoderWeights(embedding=embedding, layers=tuple(layers), final_norm=final_norm, lm_head=lm_head)


def _take_layer(take: Callable[..., WeightArray], spec: ModelSpec, prefix: str) -> LayerWeights:
    hidden, mlp, head = spec.hidden_size, spec.mlp_size, spec.head_dim
    query, kv = spec.num_heads * head, spec.num_kv_heads * head

    def take_if(wanted: bool, name: str, size: int) -> WeightArray | None:
        return take(prefix + name, size) if wanted else None

    return LayerWeights(
        q=take(prefix + "self_attn.q_proj.weight", query, hidden),
        k=take(prefix + "self_attn.k_proj.weight", kv, hidden),
        v=take(prefix + "self_attn.v_proj.weight", kv, hidden),
        o=take(prefix + "self_attn.o_proj.weight", hidden, query),
        gate=take(prefix + "mlp.gate_proj.weight", mlp, hidden),
        up=take(prefix + "mlp.up_proj.weight", mlp, hidden),
        down=take(prefix + "mlp.down_proj.weight", hidden, mlp),
        input_norm=take(prefix + "input_layernorm.weight", hidden),
        post_norm=take(prefix + "post_attention_layernorm.weight", hidden),
        q_bias=take_if(spec.qkv_bias, "self_attn.q_proj.bias", query),
        k_bias=take_if(spec.qkv_bias, "self_attn.k_proj.bias", kv),
        v_bias=take_if(spec.qkv_bias, "self_attn.v_proj.bias", kv),
        q_norm=take_if(spec.qk_norm, "self_attn.q_norm.weight", head),
        k_norm=take_if(spec.qk_norm, "self_attn.k_norm.weight", head),
    )


def _refuse_leftovers(checkpoint: Checkpoint, left: set[str], embedding: WeightArray) -> None:
    for name in sorted(left):
        if name.endswith(".rotary_emb.inv_freq"):
            continue
        if name.endswith(".self_attn.o_proj.bias"):
            if not np.any(checkpoint.read_tensor(name)):
                continue
            raise UnsupportedModel(name, "non-zero", "a bias on the attention output is not supported")
        if name == "lm_head.weight":
            if checkpoint.tensor_shape(name) == embedding.shape and _same_bits(checkpoint.read_tensor(name), embedding):
                continue
            raise CheckpointError(name, "other values", "tie_word_embeddings is true, yet the output layer is its own")
        raise CheckpointError(name, checkpoint.tensor_shape(name), "left over: the decoder has no such weight")


def _same_bits(left: WeightArray, right: WeightArray) -> bool:
    """Compares in parts: an embedding is the largest tensor."""
    bits = np.uint16 if left.itemsize == 2 else np.uint32
    return left.dtype == right.dtype and all(
        np.array_equal(left[start : start + 1024].view(bits), right[start : start + 1024].view(bits))
        for start in range(0, len(left), 1024)
    )
