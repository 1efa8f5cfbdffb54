"""The weights of a decoder on a device: one arena, filled from the checkpoint tensor by tensor.

q, k and v are one matrix; gate and up are one. The embedding, read by id, keeps the activations' type. Every other
matrix is a `Linear`, which knows its format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.gemm.gpu_weights import pack_bf16
from ...kernels.rope.gpu import HeadWeights
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.safetensors import WeightArray
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights
from ..errors import UnsupportedModel
from .arena import Arena, Layout
from .device import Device
from .linear import Linear, add_linear, fill_linear, pack_shape, placed

Matrices = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    heads: HeadWeights
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    embedding: torch.Tensor
    layers: tuple[DeviceLayer, ...]
    final_norm: torch.Tensor
    head: Linear


def matrices(spec: ModelSpec) -> Matrices:
    """[out, in] of the matrices of one layer."""
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "qkv": (query + 2 * kv, spec.hidden_size),
        "o": (spec.hidden_size, query),
        "gate_up": (2 * spec.mlp_size, spec.hidden_size),
        "down": (spec.hidden_size, spec.mlp_size),
    }


def weights_layout(spec: ModelSpec, quantize: str) -> Layout:
    """The head is never quantised: its error would directly affect the draw, and a tied embedding shares it."""
    layout, dtype = Layout(), torch.bfloat16
    layout.add("embedding", dtype, spec.vocab_size, spec.hidden_size)
    layout.add("final_norm", dtype, spec.hidden_size)
    if not spec.tied_embeddings:
        layout.add("head.weight", dtype, spec.vocab_size, spec.hidden_size)
    for index in range(spec.num_layers):
        for name in ("input_norm", "mlp_norm"):
            layout.add(f"{index}.{name}", dtype, spec.hidden_size)
        if spec.qkv_bias:
            layout.add(f"{index}.bias", dtype, matrices(spec)["qkv"][0])
        if spec.qk_norm:
            layout.add(f"{index}.q_norm", dtype, spec.head_dim)
            layout.add(f"{index}.k_norm", dtype, spec.head_dim)
        for name, (rows, columns) in matrices(spec).items():
            add_linear(layout, f"{index}.{name}", rows, columns, quantize)
    return layout


def place_weights(device: Device, spec: ModelSpec, quantize: str) -> tuple[Arena, DeviceWeights]:
    """Room for the weights, not yet filled: the arena, and its tensors in the decoder's form."""
    arena = Arena(device, weights_layout(spec, quantize))

    def linear(prefix: str, name: str) -> Linear:
        shape = pack_shape(*matrices(spec)[name], quantize)
        return Linear(placed(shape, arena, prefix + name), device.capability)

    layers = tuple(
        DeviceLayer(
            input_norm=arena[prefix + "input_norm"],
            mlp_norm=arena[prefix + "mlp_norm"],
            heads=HeadWeights(
                bias=arena.get(prefix + "bias"),
                q_norm=arena.get(prefix + "q_norm"),
                k_norm=arena.get(prefix + "k_norm"),
                eps=spec.norm_eps,
            ),
            qkv=linear(prefix, "qkv"),
            o=linear(prefix, "o"),
            gate_up=linear(prefix, "gate_up"),
            down=linear(prefix, "down"),
        )
        for prefix in (f"{index}." for index in range(spec.num_layers))
    )
    head = arena["embedding" if spec.tied_embeddings else "head.weight"]
    return arena, DeviceWeights(
        embedding=arena["embedding"],
        layers=layers,
        final_norm=arena["final_norm"],
        head=Linear(pack_bf16(head), device.capability),
    )


def fill_weights(device: Device, arena: Arena, weights: DecoderWeights, quantize: str, report: ReportProgress) -> None:
    """Write a checkpoint's weights into their room, matrix by matrix."""

    def put(name: str, *parts: WeightArray | None) -> None:
        """The parts stacked by rows; nothing if the model has no such weight."""
        row = 0
        for part in parts:
            if part is not None:
                target = arena[name]
                device.load(target[row : row + len(part)], host_tensor(part).to(target.dtype))
                row += len(part)

    def linear(name: str, *parts: WeightArray | None) -> None:
        found = [host_tensor(part) for part in parts if part is not None]
        whole = torch.cat(found) if len(found) > 1 else found[0]
        fill_linear(device, arena, name, whole, quantize)

    put("embedding", weights.embedding)
    put("head.weight", weights.lm_head)
    put("final_norm", weights.final_norm.gain)
    for index, layer in enumerate(weights.layers):
        prefix = f"{index}."
        for name, norm in (("input_norm", layer.input_norm), ("mlp_norm", layer.mlp_norm)):
            put(prefix + name, None if norm is None else norm.gain)
        put(prefix + "bias", layer.q_bias, layer.k_bias, layer.v_bias)
        put(prefix + "q_norm", None if layer.q_norm is None else layer.q_norm[0])
        put(prefix + "k_norm", None if layer.k_norm is None else layer.k_norm[0])
        linear(prefix + "qkv", layer.q, layer.k, layer.v)
        if layer.o_bias is not None and np.any(layer.o_bias):
            remedy = "the GPU's kernels have no such bias yet; use --device cpu"
            raise UnsupportedModel(f"layer {index}'s bias on the attention output", "non-zero", remedy)
        linear(prefix + "o", layer.o)
        linear(prefix + "gate_up", layer.gate, layer.up)
        linear(prefix + "down", layer.down)
        report(LoadProgress(stage="loading weights", done=index + 1, total=len(weights.layers)))


def host_tensor(array: WeightArray) -> torch.Tensor:
    """A checkpoint's array as torch sees it; uint16 holds bfloat16 bits. A read-only mapping is copied first."""
    owned = np.require(array, requirements=["C", "W"])
    if owned.dtype == np.uint16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
