"""The weights of a mixture of experts on a GPU: their room, and how it is filled.

The matrices of all experts lie one behind the other, in the format of the other matrices or in the checkpoint's own;
gate and up are one. What is beside them (weights.py) are plain matrices: the router, which --quantize leaves as it is,
since a choice of experts should not hang on 8 bits, and the shared expert's two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...kernels.gemm.gpu_weights import PackedLinear
from ..checkpoint.experts import ExpertSpec, ExpertWeights
from .arena import Arena, Layout
from .linear import Formats, Linear, Matrices, add_linear, fill_linear, pack_shape, placed
from .staging import Staging
from .stored import StoredFormats, expert_parts


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    """Of one layer. The tensors of `gate_up` and `down` have a dimension of experts in front."""

    router: Linear  # and, as one more channel, the shared expert's gate
    router_bias: torch.Tensor | None  # float32 [experts]
    correction: torch.Tensor | None
    gate_up: PackedLinear
    down: PackedLinear
    gate_up_bias: torch.Tensor | None  # [experts, out]
    down_bias: torch.Tensor | None
    shared_gate_up: Linear | None
    shared_down: Linear | None


def expert_matrices(spec: ExpertSpec, hidden: int) -> Matrices:
    """[out, in] of the matrices that each expert has."""
    return {"gate_up": (2 * spec.width, hidden), "down": (hidden, spec.width)}


def beside_experts(spec: ExpertSpec, hidden: int) -> Matrices:
    """Of the matrices that every token takes: the router, and those of a shared expert."""
    width, router = spec.shared_width, (spec.count + spec.shared_gated, hidden)
    return {"router": router} | (
        {"shared_gate_up": (2 * width, hidden), "shared_down": (hidden, width)} if width else {}
    )


def expert_formats(spec: ExpertSpec, hidden: int, prefix: str, quantize: str, stored: StoredFormats) -> Formats:
    """[out, in] and format of `expert_matrices` by their whole names."""
    matrices = expert_matrices(spec, hidden).items()
    return {prefix + name: (*size, stored.get(prefix + name, quantize)) for name, size in matrices}


def experts_layout(spec: ExpertSpec, prefix: str, stacks: Formats, biases: torch.dtype) -> Layout:
    """Room for the weights of a layer, those of `beside_experts` left out."""
    layout = Layout()
    if spec.biased:
        layout.add(prefix + "router_bias", torch.float32, spec.count)
    if spec.corrected:
        layout.add(prefix + "correction", torch.float32, spec.count)
    for name, matrix in stacks.items():
        add_linear(layout, name, *matrix, (spec.count,))
        if spec.biased:
            layout.add(f"{name}_bias", biases, spec.count, matrix[0])
    return layout


def place_experts(
    spec: ExpertSpec, arena: Arena, prefix: str, stacks: Formats, linear: Callable[[str], Linear]
) -> DeviceExperts:
    """The tensors of a layer in their room; `linear` gives one of `beside_experts`."""
    gate_up, down = (placed(pack_shape(*matrix), arena, name) for name, matrix in stacks.items())
    return DeviceExperts(
        router=linear(prefix + "router"),
        router_bias=arena.get(prefix + "router_bias"),
        correction=arena.get(prefix + "correction"),
        gate_up=gate_up,
        down=down,
        gate_up_bias=arena.get(prefix + "gate_up_bias"),
        down_bias=arena.get(prefix + "down_bias"),
        shared_gate_up=linear(prefix + "shared_gate_up") if spec.shared_width else None,
        shared_down=linear(prefix + "shared_down") if spec.shared_width else None,
    )


def fill_experts(staging: Staging, arena: Arena, weights: ExpertWeights, prefix: str, stacks: Formats) -> None:
    """Write a layer's weights into their room, expert by expert; those of `beside_experts` left out."""
    for name, vector in (("router_bias", weights.router_bias), ("correction", weights.correction)):
        if vector is not None:
            staging.put(arena[prefix + name], vector)
    assert weights.shared is None or weights.shared.gate_bias is None, "no room for a shared expert's biases"
    for (name, (*_, kind)), parts in zip(stacks.items(), expert_parts(weights).values(), strict=True):
        for index, of_expert in enumerate(parts):
            fill_linear(staging, arena, name, of_expert, kind, index)
    for index, mlp in enumerate(weights.experts):
        for name, biases in (("gate_up_bias", (mlp.gate_bias, mlp.up_bias)), ("down_bias", (mlp.down_bias,))):
            if found := [bias for bias in biases if bias is not None]:
                staging.put_rows(arena[prefix + name][index], found)
