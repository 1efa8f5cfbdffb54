"""y = x W^T for every format of W: `Linear` hides the format from the decoder.

`none` is bfloat16 by cuBLAS; int8 has a scale per output channel, int4 a scale and a zero point for 128 inputs (for 64
or 32 where 128 does not divide them); both keep bfloat16 activations. fp8 is e4m3 with a scale per output channel, and
takes e4m3 activations with a scale per token, which the kernels before it write. A `StoredFormat` in the place of such
a name is that of a checkpoint's own integers (stored.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch

from ...kernels.gemm.gpu_launch import gemm, launches_of, workspace_bytes
from ...kernels.gemm.gpu_weights import (
    GROUPS,
    PackedLinear,
    pack_bf16,
    pack_bytes,
    pack_fp8,
    pack_w4,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from ..checkpoint.stored import CodedMatrix, StoredMatrix, Weight, float_parts
from .arena import Arena, Layout
from .device import Device
from .stored import Parts, StoredFormat, pack_stored, stored_shape

SLAB_WEIGHTS = 1 << 24  # quantised at a time: 64 MiB in float32
Format = str | StoredFormat  # of one matrix
Matrices = dict[str, tuple[int, int]]  # [out, in] by name
Formats = dict[str, tuple[int, int, Format]]


@dataclass(frozen=True, slots=True)
class Activations:
    """Input of a linear layer: bfloat16, or e4m3 with a float32 scale per token."""

    values: torch.Tensor  # [T, in]
    scales: torch.Tensor | None = None  # [T]

    @classmethod
    def add(cls, layout: Layout, name: str, tokens: int, columns: int, quantize: str) -> None:
        """Reserve room for the activations of a model with these weights."""
        layout.add(name, torch.float8_e4m3fn if quantize == "fp8" else torch.bfloat16, tokens, columns)
        if quantize == "fp8":
            layout.add(f"{name}.scales", torch.float32, tokens)

    @classmethod
    def of(cls, arena: Arena, name: str) -> Activations:
        return cls(arena[name], arena.get(f"{name}.scales"))

    def first(self, tokens: int) -> Activations:
        return Activations(self.values[:tokens], None if self.scales is None else self.scales[:tokens])


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix and the kernel for it."""

    packed: PackedLinear
    capability: int

    def __call__(self, x: Activations, out: torch.Tensor, workspace: torch.Tensor, *, strict: bool) -> None:
        """out [T, out] = x [T, in] W^T; strict: the bits of a row do not depend on the others."""
        gemm(x.values, self.packed, x.scales, capability=self.capability, out=out, workspace=workspace, strict=strict)


def add_linear(layout: Layout, name: str, rows: int, columns: int, kind: Format, count: tuple[int, ...] = ()) -> None:
    """Reserve room for a matrix [rows, columns], or for so many of them, one behind the other."""
    for field, tensor in pack_shape(rows, columns, kind).tensors.items():
        layout.add(f"{name}.{field}", tensor.dtype, *count, *tensor.shape)


def fill_linear(device: Device, arena: Arena, name: str, packed: PackedLinear, *place: int) -> None:
    """Fill the room that `add_linear` reserved, or the one of many at this place."""
    for field, tensor in packed.tensors.items():
        device.load(arena[f"{name}.{field}"][place], tensor)


def linear_workspace(rows: int, columns: int, kind: Format, tokens: int, capability: int) -> int:
    """Working bytes of a GEMM with this matrix, for any number of tokens up to `tokens`."""
    packed = pack_shape(rows, columns, kind)
    return max(workspace_bytes(packed, tokens, capability, strict) for strict in (False, True))


def linear_launches(rows: int, columns: int, kind: Format, tokens: int, capability: int, *, strict: bool) -> int:
    """Number of kernels that a GEMM with this matrix and this many tokens launches."""
    return launches_of(pack_shape(rows, columns, kind), tokens, capability, strict)


def pack_parts(parts: Parts, kind: Format, place: torch.device) -> PackedLinear:
    """Matrices that are stacked by rows, in a format that they all are stored in, or quantised to it at `place`.

    That is the device: on the host, 8B parameters take minutes.
    """
    found = [part for part in parts if part is not None]
    if isinstance(kind, StoredFormat):
        return pack_stored([cast("CodedMatrix", part) for part in found], kind)  # as merged_format found them
    return pack(torch.cat([host_tensor(part) for part in found]), kind, place)


def pack(weight: torch.Tensor, quantize: str, place: torch.device | None = None) -> PackedLinear:
    """Quantised at `place`, or where the weights are."""
    if quantize == "int8":
        integers, scales = _by_slabs(quantise_int8, weight, place)
        return pack_bytes(integers, scales, 0)
    if quantize == "int4":
        group = max(size for size in GROUPS if weight.shape[1] % size == 0)
        integers, scales, zeros = _by_slabs(partial(quantise_w4, group=group, symmetric=False), weight, place)
        return pack_w4(integers, scales, zeros, group)
    if quantize == "fp8":
        return pack_fp8(*_by_slabs(partial(quantise_fp8, rows=1, columns=0), weight, place))
    return pack_bf16(weight)


def _by_slabs(
    quantise: Callable[[torch.Tensor], tuple[torch.Tensor | None, ...]],
    weight: torch.Tensor,
    place: torch.device | None,
) -> list[torch.Tensor]:
    """What `quantise` makes of some rows at a time, put together: it takes four float32 copies of them."""
    rows = max(1, SLAB_WEIGHTS // weight.shape[1])
    slabs = (weight[first : first + rows].to(place or weight.device) for first in range(0, len(weight), rows))
    made = zip(*map(quantise, slabs), strict=True)
    found = ([part for part in parts if part is not None] for parts in made)
    # As bytes: not every torch puts float8 together.
    return [torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype) for parts in found]


@functools.cache
def pack_shape(rows: int, columns: int, kind: Format) -> PackedLinear:
    """The result of `pack` or `pack_stored` without values or memory."""
    if isinstance(kind, StoredFormat):
        return stored_shape(rows, columns, kind)
    return pack(torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"), kind)


def placed(packed: PackedLinear, arena: Arena, name: str) -> PackedLinear:
    """The same matrix with its tensors in the arena."""
    return dataclasses.replace(
        packed,
        weight=arena[f"{name}.weight"],
        scales=arena.get(f"{name}.scales"),
        offsets=arena.get(f"{name}.offsets"),
        minima=arena.get(f"{name}.minima"),
    )


def host_tensor(array: Weight) -> torch.Tensor:
    """A checkpoint's array as torch sees it; uint16 holds bfloat16 bits. A read-only mapping is copied first.

    A matrix that is stored quantised is widened to bfloat16, some rows at a time.
    """
    if isinstance(array, StoredMatrix):
        return torch.cat([torch.from_numpy(part).bfloat16() for part in float_parts(array)])
    owned = np.require(array, requirements=["C", "W"])
    if owned.dtype == np.uint16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
