"""Fills the weights of a decoder on a device from a checkpoint, tensor by tensor."""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.safetensors import WeightArray
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights, NormWeights
from .arena import Arena
from .expert_weights import expert_formats, fill_experts
from .latent_weights import fill_latent, latent_in_order
from .linear import fill_linear
from .staging import Staging
from .stored import Parts, StoredFormats, merged_parts, ordered_rows
from .weights import formats_of


def fill_weights(
    staging: Staging, spec: ModelSpec, arena: Arena, weights: DecoderWeights, quantize: str, stored: StoredFormats,
    report: ReportProgress,
) -> None:  # fmt: skip
    """Enqueue copies of a checkpoint's weights into their room (weights.py), matrix by matrix."""
    formats = formats_of(spec, quantize, stored)

    def put(name: str, *parts: WeightArray | None, row: int = 0) -> None:
        """The parts stacked by rows, from `row` on; nothing if the model has no such weight."""
        if found := [part for part in parts if part is not None]:
            staging.put_rows(arena[name][row:], found)

    def put_norm(name: str, norm: NormWeights | None) -> None:
        if norm is not None:
            put(name, norm.gain)
            put(f"{name}.bias", norm.bias)

    def linear(name: str, parts: Parts) -> None:
        *_, kind = formats[name]
        fill_linear(staging, arena, name, parts, kind)

    put("embedding", weights.embedding)
    if weights.lm_head is not None:
        linear("head", (weights.lm_head,))
    put_norm("final_norm", weights.final_norm)
    for index, layer in enumerate(weights.layers):
        prefix = f"{index}."
        for name, norm in (
            ("input_norm", layer.input_norm), ("attention_out_norm", layer.attention_out_norm),
            ("mlp_norm", layer.mlp_norm), ("mlp_out_norm", layer.mlp_out_norm),
        ):  # fmt: skip
            put_norm(prefix + name, norm)
        if spec.latent is not None and layer.latent is not None:
            turned = replace(layer, latent=latent_in_order(spec, layer.latent))
            fill_latent(staging, arena, spec.latent, spec.num_heads, layer.latent, prefix)
        else:
            turned = replace(layer, q=in_rotary_order(spec, layer.q), k=in_rotary_order(spec, layer.k))
        for name, parts in merged_parts(turned).items():
            linear(prefix + name, parts)
        if layer.q_bias is not None and layer.k_bias is not None:
            q_bias, k_bias = in_rotary_order(spec, layer.q_bias), in_rotary_order(spec, layer.k_bias)
            put(prefix + "qkv.bias", q_bias, k_bias, layer.v_bias)
            if spec.qk_norm == "row":
                put(prefix + "value_bias", layer.v_bias, row=len(layer.q) + len(layer.k))
        for name, gains in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
            if gains is not None:
                in_order = in_rotary_order(spec, gains.reshape(-1)).reshape(gains.shape)
                put(prefix + name, in_order[0] if spec.qk_norm == "head" else in_order)
        put(prefix + "sinks", layer.sinks)
        put(prefix + "o.bias", layer.o_bias)
        put(prefix + "gate_up.bias", layer.gate_bias, layer.up_bias)
        put(prefix + "down.bias", layer.down_bias)
        if layer.experts is not None and spec.experts is not None:
            stacks = expert_formats(spec.experts, spec.hidden_size, prefix, quantize, stored)
            fill_experts(staging, arena, layer.experts, prefix, stacks)
        report(LoadProgress(stage="loading weights", done=index + 1, total=len(weights.layers)))


def in_rotary_order(spec: ModelSpec, values: WeightArray) -> WeightArray:
    """Rows of q or k [heads * head_dim, ...], those of each head in the order of the rotation's pairs."""
    return ordered_rows(values, spec.rotary_order)
