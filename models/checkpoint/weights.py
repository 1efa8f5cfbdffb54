"""Loads the weights of one decoder from a checkpoint's tensors. Every name is expected, every shape checked.

Each expected tensor is popped. Missing and left-over tensors are both refused: the checkpoint is then not the model
that its config.json describes. Only these may be left over:
- `….rotary_emb.inv_freq`: a buffer in old checkpoints; the tables come from the config,
- `lm_head.weight` of a tied model, if it equals the embedding bit for bit,
- the spec's `unused_layers`.
"""

from collections.abc import Set as AbstractSet
from typing import Protocol, cast

import numpy as np
from msgspec import Struct

from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..errors import CheckpointError
from .experts import ExpertWeights, take_experts
from .latent import LatentWeights, take_latent
from .open import Checkpoint
from .rope import Float32Array
from .safetensors import WeightArray, to_float32
from .spec import LayerSpec, ModelSpec
from .stored import StoredMatrix, same_values


class Take(Protocol):
    """Gives a weight by its name, checked against its shape."""

    def __call__(self, name: str, /, *shape: int) -> WeightArray: ...


class NormWeights(Struct, frozen=True):
    """A norm's gains and, of a LayerNorm that has one, its bias."""

    gain: WeightArray
    bias: WeightArray | None = None


class LayerWeights(Struct, frozen=True, kw_only=True):
    """One decoder layer. Matrices are [out, in], as in the checkpoint. None: the spec has no such weight.

    A matrix may also be a StoredMatrix in the place of an array, for those that read it by its rows.
    """

    q: WeightArray  # with latent attention it has no rows, nor have k and v
    k: WeightArray
    v: WeightArray
    o: WeightArray
    gate: WeightArray | None
    up: WeightArray  # in a layer with experts it has no rows, and `down` no columns
    down: WeightArray
    input_norm: NormWeights | None
    mlp_norm: NormWeights | None
    attention_out_norm: NormWeights | None = None
    mlp_out_norm: NormWeights | None = None
    q_bias: WeightArray | None = None
    k_bias: WeightArray | None = None
    v_bias: WeightArray | None = None
    o_bias: WeightArray | None = None
    gate_bias: WeightArray | None = None
    up_bias: WeightArray | None = None
    down_bias: WeightArray | None = None
    latent: LatentWeights | None = None
    experts: ExpertWeights | None = None
    q_norm: Float32Array | None = None  # [heads, head_dim], the same gain for all heads repeated
    k_norm: Float32Array | None = None  # [kv heads, head_dim]
    sinks: WeightArray | None = None  # [heads]


class DecoderWeights(Struct, frozen=True, kw_only=True):
    """Every array is float32, or uint16 with bfloat16 bits; it may be memory-mapped and read-only."""

    embedding: WeightArray  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    lm_head: WeightArray | None  # [vocab, hidden]; None when tied


def load_weights(checkpoint: Checkpoint, report: ReportProgress = ignore_progress) -> DecoderWeights:
    """Pop every weight of the checkpoint's spec."""
    spec = checkpoint.spec
    left = set(checkpoint.tensor_names)
    prefix = prefix_of(checkpoint)

    def take(name: str, *shape: int) -> WeightArray:
        name = name.removeprefix(prefix)
        _refuse_unfit(checkpoint, name, shape, left)
        left.remove(name)
        return cast("WeightArray", checkpoint.read_tensor(name))

    weights = make_weights(spec, take, report)
    unused = tuple(f"model.layers.{spec.num_layers + index}." for index in range(spec.unused_layers))
    _refuse_leftovers(checkpoint, {name for name in left if not name.startswith(unused)}, weights.embedding)
    return weights


def _refuse_unfit(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], names: AbstractSet[str]) -> None:
    if name not in names:
        family = checkpoint.spec.family
        raise CheckpointError(name, None, f"this weight is missing; a {family} model of this config needs it")
    if (found := checkpoint.tensor_shape(name)) != shape:
        raise CheckpointError(name, found, f"config.json implies the shape {shape}")


def prefix_of(checkpoint: Checkpoint) -> str:
    """What the names of this checkpoint lack: "model.", where a decoder was saved without its LM head's class."""
    return "model." if "embed_tokens.weight" in checkpoint.tensor_names else ""


def stored_matrices(checkpoint: Checkpoint) -> list[StoredMatrix]:
    """All that are stored quantised."""
    found = (checkpoint.stored_matrix(name) for name in checkpoint.tensor_names)
    return [matrix for matrix in found if matrix is not None]


def outline_weights(checkpoint: Checkpoint) -> DecoderWeights:
    """The shapes of the weights, and the matrices that are stored quantised, from headers alone.

    Other weights are stand-ins: zeros that take no memory. What is left over is for `load_weights` to refuse.
    """

    prefix, names = prefix_of(checkpoint), checkpoint.tensor_names

    def take(name: str, *shape: int) -> WeightArray:
        name = name.removeprefix(prefix)
        _refuse_unfit(checkpoint, name, shape, names)
        stored = checkpoint.stored_matrix(name)
        return np.broadcast_to(np.float32(0), shape) if stored is None else cast("WeightArray", stored)

    return make_weights(checkpoint.spec, take)


def make_weights(spec: ModelSpec, take: Take, report: ReportProgress = ignore_progress) -> DecoderWeights:
    """The decoder of a spec, each weight from `take(name, *shape)`."""
    embedding = take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    layers: list[LayerWeights] = []
    for index in range(spec.num_layers):
        layers.append(_take_layer(take, spec, spec.layers[index], f"model.layers.{index}."))
        report(LoadProgress(stage="reading weights", done=index + 1, total=spec.num_layers))
    final_norm = _take_norm(take, spec, "model.norm", spec.hidden_size)
    lm_head = None if spec.tied_embeddings else take("lm_head.weight", spec.vocab_size, spec.hidden_size)
    return DecoderWeights(embedding=embedding, layers=tuple(layers), final_norm=final_norm, lm_head=lm_head)


def _take_layer(take: Take, spec: ModelSpec, kind: LayerSpec, prefix: str) -> LayerWeights:
    hidden, mlp, head, names = spec.hidden_size, spec.mlp_size, spec.head_dim, spec.names
    query, kv = spec.num_heads * head, spec.num_kv_heads * head

    def linears(
        fused: str | None, parts: dict[str, int], columns: int, bias: bool
    ) -> list[tuple[WeightArray, WeightArray | None]]:
        """(matrix, bias) of each part, by their own names or as rows of one fused matrix."""
        if fused is None:
            return [linear(name, rows, columns, bias) for name, rows in parts.items()]
        whole, biases = linear(fused, sum(parts.values()), columns, bias)
        found, first = list[tuple[WeightArray, WeightArray | None]](), 0
        for rows in parts.values():
            part = slice(first, first + rows)
            found.append((whole[part], None if biases is None else biases[part]))
            first += rows
        return found

    def linear(name: str, rows: int, columns: int, bias: bool) -> tuple[WeightArray, WeightArray | None]:
        weight = take(f"{prefix}{name}.weight", rows, columns)
        return weight, take(f"{prefix}{name}.bias", rows) if bias else None

    def norm(name: str | None) -> NormWeights | None:
        return None if name is None else _take_norm(take, spec, prefix + name, hidden)

    attention = {"self_attn.q_proj": query, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
    none: WeightArray = np.zeros((0, hidden), np.float32)
    if spec.latent is None:
        latent = None
        (q, q_bias), (k, k_bias), (v, v_bias) = linears(names.qkv, attention, hidden, spec.qkv_bias)
    else:
        (q, q_bias), (k, k_bias), (v, v_bias) = [(none, None)] * 3
        latent = take_latent(take, spec.latent, f"{prefix}self_attn.", hidden, spec.num_heads)
    o, o_bias = linear("self_attn.o_proj", hidden, spec.num_heads * spec.mixed_dim, spec.out_bias)
    up = none
    down: WeightArray = np.zeros((hidden, 0), np.float32)
    gate, gate_bias, up_bias, down_bias, experts = None, None, None, None, None
    if kind.experts and spec.experts is not None:
        experts = take_experts(take, spec.experts, prefix, hidden)
    else:
        gated = {"mlp.gate_proj": mlp} if spec.gated else {}
        *gates, (up, up_bias) = linears(names.gate_up, {**gated, "mlp.up_proj": mlp}, hidden, spec.mlp_bias)
        gate, gate_bias = gates[0] if gates else (None, None)
        down, down_bias = linear("mlp.down_proj", hidden, mlp, spec.mlp_bias)
    return LayerWeights(
        q=q,
        k=k,
        v=v,
        o=o,
        gate=gate,
        up=up,
        down=down,
        input_norm=norm(names.before_attention),
        mlp_norm=norm(names.before_mlp),
        attention_out_norm=norm(names.after_attention),
        mlp_out_norm=norm(names.after_mlp),
        q_bias=q_bias,
        k_bias=k_bias,
        v_bias=v_bias,
        o_bias=o_bias,
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
        latent=latent,
        experts=experts,
        q_norm=_take_head_norm(take, spec, prefix + names.q_norm, spec.num_heads),
        k_norm=_take_head_norm(take, spec, prefix + names.k_norm, spec.num_kv_heads),
        sinks=take(f"{prefix}self_attn.sinks", spec.num_heads) if spec.sinks else None,
    )


def _take_norm(take: Take, spec: ModelSpec, name: str, size: int) -> NormWeights:
    gain = take(f"{name}.weight", size)
    if spec.norm_offset:
        gain = to_float32(gain) + np.float32(spec.norm_offset)
    return NormWeights(gain, take(f"{name}.bias", size) if spec.norm_bias else None)


def _take_head_norm(take: Take, spec: ModelSpec, name: str, heads: int) -> Float32Array | None:
    """[heads, head_dim]: the gains of q or k, however they are stored."""
    head = spec.head_dim
    match spec.qk_norm:
        case None:
            return None
        case "head":
            gains = np.tile(to_float32(take(f"{name}.weight", head)), (heads, 1))
        case "heads" if "{}" in name:
            gains = np.stack([to_float32(take(f"{name.format(index)}.weight", head)) for index in range(heads)])
        case "heads":
            gains = to_float32(take(f"{name}.weight", heads, head))
        case "row":
            gains = to_float32(take(f"{name}.weight", heads * head)).reshape(heads, head)
    return gains + np.float32(spec.norm_offset)


def _refuse_leftovers(checkpoint: Checkpoint, left: set[str], embedding: WeightArray) -> None:
    for name in sorted(left):
        if name.endswith(".rotary_emb.inv_freq"):
            continue
        if name == "lm_head.weight":
            if same_values(checkpoint.read_tensor(name), embedding):
                continue
            raise CheckpointError(name, "other values", "tie_word_embeddings is true, yet the output layer is its own")
        raise CheckpointError(name, checkpoint.tensor_shape(name), "left over: the decoder has no such weight")
