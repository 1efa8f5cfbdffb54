"""The weights of a decoder on a device: one arena, which fill.py fills from the checkpoint.

q, k and v are one matrix; gate and up are one. The embedding, read by id, keeps the activations' type. Every other
matrix is a `Linear`, which knows its format.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.rope.gpu import HeadWeights
from ..checkpoint.spec import LayerSpec, ModelSpec
from .arena import Arena, Layout
from .device import Device
from .expert_weights import DeviceExperts, beside_experts, expert_formats, experts_layout, place_experts
from .latent_weights import DeviceLatent, latent_layout, latent_matrices, place_latent
from .linear import Formats, Linear, Matrices, add_linear, float_type, pack, pack_shape, placed, plain_format
from .stored import StoredFormats


@dataclass(frozen=True, slots=True)
class Norm:
    gain: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class RowNorm:
    """Of all heads of q, or of k, together: some columns of the projection, which get their bias first."""

    columns: slice
    gain: torch.Tensor
    x_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DeviceMlp:
    gate_up: Linear
    gate_up_bias: torch.Tensor | None
    down: Linear


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """None: the model has no such norm, bias or part. Biases are added by the kernel that reads the product."""

    input_norm: Norm | None
    attention_out_norm: Norm | None
    mlp_norm: Norm | None
    mlp_out_norm: Norm | None
    qkv: Linear
    row_norms: tuple[RowNorm, ...]
    heads: HeadWeights
    sinks: torch.Tensor | None
    o: Linear
    o_bias: torch.Tensor | None
    latent: DeviceLatent | None
    feed_forward: DeviceMlp | DeviceExperts
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    embedding: torch.Tensor
    layers: tuple[DeviceLayer, ...]
    final_norm: Norm
    head: Linear


def matrices(spec: ModelSpec, layer: LayerSpec) -> Matrices:
    """[out, in] of the matrices of a layer, besides those of experts."""
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = {"qkv": (query + 2 * kv, spec.hidden_size)}
    if spec.latent is not None:
        attention = latent_matrices(spec.latent, spec.hidden_size, spec.num_heads)
    attention["o"] = (spec.hidden_size, spec.num_heads * spec.mixed_dim)
    if layer.experts:
        return attention
    return attention | {
        "gate_up": ((1 + spec.gated) * spec.mlp_size, spec.hidden_size),
        "down": (spec.hidden_size, spec.mlp_size),
    }


def norms(spec: ModelSpec) -> list[str]:
    """The norms that a layer has around its blocks."""
    names = spec.names
    roles = {
        "input_norm": names.before_attention, "attention_out_norm": names.after_attention,
        "mlp_norm": names.before_mlp, "mlp_out_norm": names.after_mlp,
    }  # fmt: skip
    return [name for name, stored in roles.items() if stored is not None]


def formats_of(spec: ModelSpec, quantize: str, stored: StoredFormats) -> Formats:
    """[out, in] and format of every matrix but a tied head and those that each expert has.

    --quantize leaves the head as it is: its error would directly affect the draw, and a tied embedding shares it.
    """
    found, plain = Formats(), plain_format(quantize)
    if not spec.tied_embeddings:
        found["head"] = (spec.vocab_size, spec.hidden_size, stored.get("head", plain))
    for index, kind in enumerate(spec.layers):
        sizes = matrices(spec, kind)
        if kind.experts and spec.experts is not None:
            sizes |= beside_experts(spec.experts, spec.hidden_size)
        for name, size in sizes.items():
            place = f"{index}.{name}"
            found[place] = (*size, stored.get(place, plain if name == "router" else quantize))
    return found


def weights_layout(spec: ModelSpec, quantize: str, stored: StoredFormats | None = None) -> Layout:
    """The embedding is read by rows: one that is stored quantised is widened."""
    layout, dtype = Layout(), float_type(quantize)
    # A gain plus an offset would lose, in bfloat16, bits that the stored one has.
    gains = torch.float32 if spec.norm_offset else dtype

    def norm(name: str) -> None:
        layout.add(name, gains, spec.hidden_size)
        if spec.norm_bias:
            layout.add(f"{name}.bias", dtype, spec.hidden_size)

    layout.add("embedding", dtype, spec.vocab_size, spec.hidden_size)
    norm("final_norm")
    biased = {"qkv": spec.qkv_bias, "o": spec.out_bias, "gate_up": spec.mlp_bias, "down": spec.mlp_bias}
    for index, kind in enumerate(spec.layers):
        prefix, sizes = f"{index}.", matrices(spec, kind)
        for name in norms(spec):
            norm(prefix + name)
        for name in (name for name in sizes if biased.get(name)):
            layout.add(f"{prefix}{name}.bias", dtype, sizes[name][0])
        if spec.qkv_bias and spec.qk_norm == "row":
            layout.add(f"{prefix}value_bias", dtype, sizes["qkv"][0])
        if spec.qk_norm is not None:
            for name, heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_kv_heads)):
                layout.add(prefix + name, gains, *(() if spec.qk_norm == "head" else (heads,)), spec.head_dim)
        if spec.latent is not None:
            layout.extend(latent_layout(spec.latent, spec.num_heads, prefix))
        if spec.sinks:
            layout.add(f"{prefix}sinks", torch.float32, spec.num_heads)
        if kind.experts and spec.experts is not None:
            stacks = expert_formats(spec.experts, spec.hidden_size, prefix, quantize, stored or {})
            layout.extend(experts_layout(spec.experts, prefix, stacks, dtype))
    for name, matrix in formats_of(spec, quantize, stored or {}).items():
        add_linear(layout, name, *matrix)
    return layout


def place_weights(device: Device, spec: ModelSpec, quantize: str, stored: StoredFormats) -> tuple[Arena, DeviceWeights]:
    """Room for the weights, not yet filled: the arena, and its tensors in the decoder's form."""
    arena, formats = Arena(device, weights_layout(spec, quantize, stored)), formats_of(spec, quantize, stored)
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def norm(name: str) -> Norm | None:
        gain = arena.get(name)
        return None if gain is None else Norm(gain, arena.get(f"{name}.bias"))

    def linear(place: str) -> Linear:
        return Linear(placed(pack_shape(*formats[place]), arena, place), device.capability)

    def feed_forward(prefix: str, kind: LayerSpec) -> DeviceMlp | DeviceExperts:
        if kind.experts and spec.experts is not None:
            stacks = expert_formats(spec.experts, spec.hidden_size, prefix, quantize, stored)
            return place_experts(spec.experts, arena, prefix, stacks, linear)
        return DeviceMlp(linear(prefix + "gate_up"), arena.get(prefix + "gate_up.bias"), linear(prefix + "down"))

    def latent(prefix: str) -> DeviceLatent | None:
        if spec.latent is None:
            return None
        return place_latent(arena, prefix, None if spec.latent.query_rank is None else linear(prefix + "queries"))

    def layer(prefix: str, kind: LayerSpec) -> DeviceLayer:
        q_norm, k_norm, bias = (arena.get(prefix + name) for name in ("q_norm", "k_norm", "qkv.bias"))
        rows = tuple[RowNorm, ...]()
        if spec.qk_norm == "row" and q_norm is not None and k_norm is not None:
            parts = (slice(0, query), q_norm), (slice(query, query + kv), k_norm)
            rows = tuple(RowNorm(at, gain.view(-1), None if bias is None else bias[at]) for at, gain in parts)
            q_norm, k_norm, bias = None, None, arena.get(f"{prefix}value_bias")
        return DeviceLayer(
            input_norm=norm(prefix + "input_norm"),
            attention_out_norm=norm(prefix + "attention_out_norm"),
            mlp_norm=norm(prefix + "mlp_norm"),
            mlp_out_norm=norm(prefix + "mlp_out_norm"),
            qkv=linear(prefix + "qkv"),
            row_norms=rows,
            heads=HeadWeights(bias=bias, q_norm=q_norm, k_norm=k_norm, eps=spec.norm_eps, centred=spec.layer_norm),
            sinks=arena.get(prefix + "sinks"),
            o=linear(prefix + "o"),
            o_bias=arena.get(prefix + "o.bias"),
            latent=latent(prefix),
            feed_forward=feed_forward(prefix, kind),
            down_bias=arena.get(prefix + "down.bias"),
        )

    final_norm = norm("final_norm")
    assert final_norm is not None
    tied = Linear(pack(arena["embedding"], plain_format(quantize)), device.capability)
    return arena, DeviceWeights(
        embedding=arena["embedding"],
        layers=tuple(layer(f"{index}.", kind) for index, kind in enumerate(spec.layers)),
        final_norm=final_norm,
        head=tied if spec.tied_embeddings else linear("head"),
    )
