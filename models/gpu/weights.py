"""The weights of a decoder on a device: one arena, filled from the checkpoint tensor by tensor.

q, k and v are one matrix, gate and up are one. What is read by id (the embedding) stays in the activations' type; every
other matrix is a `Linear`, which knows how it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.gemm.gpu_weights import pack_bf16
from ...kernels.rope.gpu import HeadWeights
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.safetensors import WeightArray
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights, LayerWeights
from .arena import Arena, Layout
from .device import Device
from .linear import Linear, add_linear, make_linear

Matrices = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    input_norm: torch.Tensor
    post_norm: torch.Tensor
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
    """The head is never quantised: its error goes straight into the draw, and with a tied embedding it is shared."""
    layout, dtype = Layout(), torch.bfloat16
    layout.add("embedding", dtype, spec.vocab_size, spec.hidden_size)
    layout.add("final_norm", dtype, spec.hidden_size)
    if not spec.tied_embeddings:
        layout.add("head.weight", dtype, spec.vocab_size, spec.hidden_size)
    for index in range(spec.num_layers):
        for name in ("input_norm", "post_norm"):
            layout.add(f"{index}.{name}", dtype, spec.hidden_size)
        if spec.qkv_bias:
            layout.add(f"{index}.bias", dtype, matrices(spec)["qkv"][0])
        if spec.qk_norm:
            layout.add(f"{index}.q_norm", dtype, spec.head_dim)
            layout.add(f"{index}.k_norm", dtype, spec.head_dim)
        for name, (rows, columns) in matrices(spec).items():
            add_linear(layout, f"{index}.{name}", rows, columns, quantize)
    return layout


def load_weights_to(
    device: Device,
    spec: ModelSpec,
    weights: DecoderWeights,
    quantize: str,
    report: ReportProgress,
) -> DeviceWeights:
    arena = Arena(device, weights_layout(spec, quantize))

    def put(name: str, *parts: WeightArray | None) -> torch.Tensor | None:
        """Write the parts one below the other; None where the model has no such weight."""
        if any(part is None for part in parts):
            return None
        target, row = arena[name], 0
        for part in parts:
            assert part is not None
            device.load(target[row : row + len(part)], host_tensor(part).to(target.dtype))
            row += len(part)
        return target

    def need(name: str, part: WeightArray) -> torch.Tensor:
        target = put(name, part)
        assert target is not None
        return target

    def linear(name: str, *parts: WeightArray) -> Linear:
        whole = torch.cat([host_tensor(part) for part in parts]) if len(parts) > 1 else host_tensor(parts[0])
        return make_linear(device, arena, name, whole, quantize)

    def layers() -> Iterator[DeviceLayer]:
        for index, layer in enumerate(weights.layers):
            yield _layer(f"{index}.", layer)
            report(LoadProgress(stage="loading weights", done=index + 1, total=spec.num_layers))

    def _layer(prefix: str, layer: LayerWeights) -> DeviceLayer:
        return DeviceLayer(
            input_norm=need(prefix + "input_norm", layer.input_norm),
            post_norm=need(prefix + "post_norm", layer.post_norm),
            heads=HeadWeights(
                bias=put(prefix + "bias", layer.q_bias, layer.k_bias, layer.v_bias),
                q_norm=put(prefix + "q_norm", layer.q_norm),
                k_norm=put(prefix + "k_norm", layer.k_norm),
                eps=spec.norm_eps,
            ),
            qkv=linear(prefix + "qkv", layer.q, layer.k, layer.v),
            o=linear(prefix + "o", layer.o),
            gate_up=linear(prefix + "gate_up", layer.gate, layer.up),
            down=linear(prefix + "down", layer.down),
        )

    embedding = need("embedding", weights.embedding)
    head = embedding if weights.lm_head is None else need("head.weight", weights.lm_head)
    return DeviceWeights(
        embedding=embedding,
        layers=tuple(layers()),
        final_norm=need("final_norm", weights.final_norm),
        head=Linear(pack_bf16(head), device.capability),
    )


def host_tensor(array: WeightArray) -> torch.Tensor:
    """A checkpoint's array as torch sees it; uint16 holds bfloat16 bits. A read-only mapping is copied first."""
    owned = np.require(array, requirements=["C", "W"])
    if owned.dtype == np.uint16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
