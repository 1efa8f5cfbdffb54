"""The block of a layer with experts, in the place of the MLP: its launches and what they work with."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch

from ...kernels.activation.gpu import Clamp, activate
from ...kernels.experts.gpu_group import group, plan_words
from ...kernels.experts.gpu_launch import combine, multiply_experts
from ...kernels.experts.gpu_route import route
from ...kernels.experts.gpu_table import launch_for
from ...kernels.quantise.gpu import quantise_rows
from ..checkpoint.experts import ExpertSpec
from .adapters import Adapted
from .arena import Arena, Layout
from .buckets import GpuSizes, PassShape
from .expert_weights import DeviceExperts, beside_experts, expert_matrices
from .linear import Activations, float_type, pack_shape
from .residual import Added, Residual
from .weights import DeviceLayer

MORE_LAUNCHES = 5  # than the one between the products of an MLP: route, group, two grouped products, the sum


def mixture_layout(spec: ExpertSpec, hidden: int, sizes: GpuSizes, capability: int) -> Layout:
    """What a pass works with, for the largest shape. Gates and ups, and what the downs give, share their room."""
    layout, tokens, quantize = Layout(), sizes.buckets.tokens[-1], sizes.quantize
    dtype = float_type(quantize)
    entries = tokens * spec.routing.chosen
    layout.add("router", torch.float32, tokens, beside_experts(spec, hidden)["router"][0])
    layout.add("chosen", torch.int32, tokens, spec.routing.chosen)
    layout.add("expert_weights", torch.float32, tokens, spec.routing.chosen + 1)
    layout.add("plan_of_experts", torch.int32, _plan_words(spec, sizes, capability))
    layout.add("expert_wide", dtype, entries * max(2 * spec.width, hidden))
    Activations.add(layout, "expert_gated", entries, spec.width, quantize)
    if quantize == "fp8":
        layout.add("entered", torch.bfloat16, tokens, hidden)  # what the router reads
    if spec.shared_width:
        layout.add("shared_wide", dtype, tokens, 2 * spec.shared_width)
        Activations.add(layout, "shared_gated", tokens, spec.shared_width, quantize)
        layout.add("shared", dtype, tokens, hidden)
    return layout


def _plan_words(spec: ExpertSpec, sizes: GpuSizes, capability: int) -> int:
    """Matrices that run as they are stored have the blocks of bfloat16."""
    kind, found = pack_shape(*expert_matrices(spec, 128)["down"], sizes.quantize).format, list[int]()
    for shape in sizes.buckets.every():
        entries = shape.tokens * spec.routing.chosen
        launch = launch_for(kind, capability, entries, spec.count, strict=shape.strict)
        found.append(plan_words(entries, spec.count, launch.block_m))
    return max(found)


class Mixture:
    """Enqueues the experts of one layer."""

    def __init__(
        self,
        capability: int,
        spec: ExpertSpec,
        layer: DeviceLayer,
        weights: DeviceExperts,
        residual: Residual,
        buffers: Arena,
        packet: Arena,
    ) -> None:
        self._capability, self._spec, self._weights, self._norm = capability, spec, weights, layer.mlp_norm
        self._residual, self._buffers, self._packet = residual, buffers, packet
        self._normed, self._gated = Activations.of(buffers, "normed"), Activations.of(buffers, "expert_gated")
        self._clamp = None
        if (spec.gate_limit, spec.gate_slope, spec.up_offset) != (inf, 1.0, 0.0):
            self._clamp = Clamp(spec.gate_limit, spec.gate_slope, spec.up_offset)
        if spec.shared_width:
            self._shared_gated = Activations.of(buffers, "shared_gated")

    def run(self, added: Added, adapted: Mapping[str, Adapted], shape: PassShape) -> None:
        """From the residual stream, to which `added` comes first, to "hidden". A router reads bfloat16, which fp8's
        products then get rounded.
        """
        del adapted  # experts have none
        spec, layer, buffers, tokens = self._spec, self._weights, self._buffers, shape.tokens
        x, out = self._normed.first(tokens), buffers["hidden"][:tokens]
        entered = x.values if x.scales is None else buffers["entered"][:tokens]
        self._residual.enter(self._norm, added, shape, Activations(entered))
        if x.scales is not None:
            quantise_rows(entered, x.values, x.scales, capability=self._capability)
        chosen, weights = buffers["chosen"][:tokens], buffers["expert_weights"][:tokens]
        logits, workspace = buffers["router"][:tokens], buffers["workspace"]
        layer.router(Activations(entered), logits, workspace, strict=shape.strict)
        route(
            spec.routing, logits, self._packet["starts"][: shape.chunks + 1], chosen, weights,
            bias=layer.router_bias, correction=layer.correction, shared_gate=spec.shared_gated,
        )  # fmt: skip
        entries = chosen.numel()
        first, second = (
            launch_for(weight.format, self._capability, entries, spec.count, strict=shape.strict)
            for weight in (layer.gate_up, layer.down)
        )
        plan, gated = buffers["plan_of_experts"], self._gated.first(entries)
        group(chosen, plan, experts=spec.count, block_m=first.block_m)
        wide = buffers["expert_wide"][: entries * 2 * spec.width].view(entries, 2 * spec.width)
        multiply_experts(
            x.values, layer.gate_up, plan, wide,
            launch=first, experts=spec.count, x_scales=x.scales, bias=layer.gate_up_bias,
        )  # fmt: skip
        self._activate(wide, gated, self._clamp)
        results = buffers["expert_wide"][: entries * out.shape[1]].view(entries, out.shape[1])
        multiply_experts(
            gated.values, layer.down, plan, results,
            launch=second, experts=spec.count, x_scales=gated.scales, bias=layer.down_bias,
        )  # fmt: skip
        combine(results, weights, self._shared(x, shape), out)

    def _activate(self, x: torch.Tensor, out: Activations, clamp: Clamp | None) -> None:
        activate(
            x, out.values, activation="silu", gated=True, capability=self._capability, scales=out.scales, clamp=clamp
        )

    def _shared(self, x: Activations, shape: PassShape) -> torch.Tensor | None:
        layer = self._weights
        if layer.shared_gate_up is None or layer.shared_down is None:
            return None
        buffers, tokens = self._buffers, shape.tokens
        wide, gated, out = buffers["shared_wide"][:tokens], self._shared_gated.first(tokens), buffers["shared"][:tokens]
        layer.shared_gate_up(x, wide, buffers["workspace"], strict=shape.strict)
        self._activate(wide, gated, None)
        layer.shared_down(gated, out, buffers["workspace"], strict=shape.strict)
        return out


def more_launches_of_experts(spec: ExpertSpec, quantize: str) -> int:
    """Of a layer, besides its plain products, than one with an MLP has."""
    return MORE_LAUNCHES + (spec.shared_width > 0) + (quantize == "fp8")
