"""The weights of a mixture of experts on a GPU: their room, and how it is filled.

The matrices of all experts lie one behind the other, in the format of the other matrices; gate and up are one. Routers
are bfloat16 beside any format: a choice of experts should not hang on 8 bits. A shared expert is two plain products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.gemm.gpu_weights import PackedLinear
from ..checkpoint.experts import ExpertSpec, ExpertWeights, MlpWeights
from ..checkpoint.safetensors import WeightArray, to_float32
from .arena import Arena, Layout
from .device import Device
from .linear import TENSORS, Linear, add_linear, fill_linear, host_tensor, pack, pack_shape, placed

Matrices = dict[str, tuple[int, int]]


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


def shared_matrices(spec: ExpertSpec, hidden: int) -> Matrices:
    """Of the shared expert; nothing if there is none."""
    width = spec.shared_width
    return {"shared_gate_up": (2 * width, hidden), "shared_down": (hidden, width)} if width else {}


def router_matrix(spec: ExpertSpec, hidden: int) -> tuple[int, int]:
    return spec.count + spec.shared_gated, hidden


def experts_layout(spec: ExpertSpec, hidden: int, prefix: str, quantize: str) -> Layout:
    """Room for the weights of a layer."""
    layout = Layout()
    add_linear(layout, prefix + "router", *router_matrix(spec, hidden), "none")
    if spec.biased:
        layout.add(prefix + "router_bias", torch.float32, spec.count)
    if spec.corrected:
        layout.add(prefix + "correction", torch.float32, spec.count)
    for name, size in expert_matrices(spec, hidden).items():
        packed = pack_shape(*size, quantize)
        for field in TENSORS:
            tensor: torch.Tensor | None = getattr(packed, field)
            if tensor is not None:
                layout.add(f"{prefix}{name}.{field}", tensor.dtype, spec.count, *tensor.shape)
        if spec.biased:
            layout.add(f"{prefix}{name}_bias", torch.bfloat16, spec.count, size[0])
    for name, size in shared_matrices(spec, hidden).items():
        add_linear(layout, prefix + name, *size, quantize)
    return layout


def place_experts(
    spec: ExpertSpec, hidden: int, arena: Arena, prefix: str, quantize: str, capability: int
) -> DeviceExperts:
    """The tensors of a layer in their room."""
    stacks = {
        name: placed(pack_shape(*size, quantize), arena, prefix + name)
        for name, size in expert_matrices(spec, hidden).items()
    }
    shared = {
        name: Linear(placed(pack_shape(*size, quantize), arena, prefix + name), capability)
        for name, size in shared_matrices(spec, hidden).items()
    }
    return DeviceExperts(
        router=Linear(placed(pack_shape(*router_matrix(spec, hidden), "none"), arena, prefix + "router"), capability),
        router_bias=arena.get(prefix + "router_bias"),
        correction=arena.get(prefix + "correction"),
        gate_up=stacks["gate_up"],
        down=stacks["down"],
        gate_up_bias=arena.get(prefix + "gate_up_bias"),
        down_bias=arena.get(prefix + "down_bias"),
        shared_gate_up=shared.get("shared_gate_up"),
        shared_down=shared.get("shared_down"),
    )


def fill_experts(device: Device, arena: Arena, weights: ExpertWeights, prefix: str, quantize: str) -> None:
    """Write a layer's weights into their room, expert by expert."""
    fill_linear(device, arena, prefix + "router", _stacked(weights.router, weights.shared_gate), "none")
    for name, vector in (("router_bias", weights.router_bias), ("correction", weights.correction)):
        if vector is not None:
            device.load(arena[prefix + name], torch.from_numpy(np.array(to_float32(vector))))
    for index, mlp in enumerate(weights.experts):
        for name, matrix, bias in _matrices_of(mlp):
            packed = pack(matrix, quantize)
            for field in TENSORS:
                tensor: torch.Tensor | None = getattr(packed, field)
                if tensor is not None:
                    device.load(arena[f"{prefix}{name}.{field}"][index], tensor)
            if bias is not None:
                device.load(arena[f"{prefix}{name}_bias"][index], bias.bfloat16())
    if weights.shared is not None:
        for name, matrix, _ in _matrices_of(weights.shared):
            fill_linear(device, arena, f"{prefix}shared_{name}", matrix, quantize)


def _matrices_of(mlp: MlpWeights) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """The two matrices of an expert, with their biases."""
    biased = mlp.gate_bias is not None
    yield "gate_up", _stacked(mlp.gate, mlp.up), _stacked(mlp.gate_bias, mlp.up_bias) if biased else None
    yield "down", _stacked(mlp.down), _stacked(mlp.down_bias) if biased else None


def _stacked(*parts: WeightArray | None) -> torch.Tensor:
    return torch.cat([host_tensor(part) for part in parts if part is not None])
