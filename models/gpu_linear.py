"""y = x W^T for every way in which W may be stored: `Linear` hides which one it is from the decoder.

`none` is bfloat16 by cuBLAS; int8 has a scale per output channel, int4 a scale and a zero point for 128 inputs (for 64
or 32 where 128 does not divide them). Activations stay bfloat16.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..kernels.gemm.gpu_launch import bf16_gemm, w4a16_gemm, w8a16_gemm, workspace_bytes
from ..kernels.gemm.gpu_weights import GROUPS, PackedLinear, pack_bf16, pack_w4, pack_w8, quantise_w4
from .device import Device
from .gpu_arena import Arena, Layout

GEMMS: dict[str, Callable[..., torch.Tensor]] = {"bf16": bf16_gemm, "w8a16": w8a16_gemm, "w4a16": w4a16_gemm}
TENSORS = ("weight", "scales", "offsets")


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix and the kernel for it."""

    packed: PackedLinear
    capability: int

    def __call__(self, x: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor) -> None:
        """out [T, out] = x [T, in] W^T."""
        GEMMS[self.packed.format](x, self.packed, capability=self.capability, out=out, workspace=workspace)


def make_linear(device: Device, arena: Arena, name: str, weight: torch.Tensor, quantize: str) -> Linear:
    """Quantise and pack on the host, then fill the places that `add_linear` made."""
    packed = pack(weight, quantize)
    for field in TENSORS:
        tensor: torch.Tensor | None = getattr(packed, field)
        if tensor is not None:
            device.load(arena[f"{name}.{field}"], tensor)
    return Linear(placed(packed, arena, name), device.capability)


def add_linear(layout: Layout, name: str, rows: int, columns: int, quantize: str) -> None:
    """Places for a matrix [rows, columns]."""
    packed = pack_shape(rows, columns, quantize)
    for field in TENSORS:
        tensor: torch.Tensor | None = getattr(packed, field)
        if tensor is not None:
            layout.add(f"{name}.{field}", tensor.dtype, *tensor.shape)


def linear_workspace(rows: int, columns: int, quantize: str, tokens: int, capability: int) -> int:
    """Bytes that a GEMM with this matrix needs beside its result, for any number of tokens up to `tokens`."""
    return workspace_bytes(pack_shape(rows, columns, quantize), tokens, capability)


def pack(weight: torch.Tensor, quantize: str) -> PackedLinear:
    if quantize == "int8":
        return pack_w8(weight)
    if quantize == "int4":
        group = max(size for size in GROUPS if weight.shape[1] % size == 0)
        return pack_w4(*quantise_w4(weight, group, symmetric=False), group)
    return pack_bf16(weight)


@functools.cache
def pack_shape(rows: int, columns: int, quantize: str) -> PackedLinear:
    """What `pack` would give, without values or memory."""
    return pack(torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"), quantize)


def placed(packed: PackedLinear, arena: Arena, name: str) -> PackedLinear:
    """The same matrix with its tensors in the arena."""
    return dataclasses.replace(
        packed,
        weight=arena[f"{name}.weight"],
        scales=None if packed.scales is None else arena[f"{name}.scales"],
        offsets=None if packed.offsets is None else arena[f"{name}.offsets"],
    )
