"""y = x W^T for every format of W: `Linear` hides the format from the decoder.

`none` is bfloat16 by cuBLAS, `float32` the same in that type. int8 has a scale per output channel, int4 a scale and a
zero point for 128 inputs (for 64 or 32 where 128 does not divide them); both keep bfloat16 activations. The others take
activations in 8 bits, which the kernels before them write: fp8 is e4m3 with a scale per output channel, and per token,
w8a8 is so in int8. fp8-block is e4m3 with a scale per 128 x 128 weights, and per 128 values of a token: some
checkpoints store it. A `StoredFormat` in the place of such a name is that of a checkpoint's own integers (stored.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from ...kernels.gemm.gpu_launch import gemm, launches_of, workspace_bytes
from ...kernels.gemm.gpu_weights import (
    GROUPS,
    PackedLinear,
    pack_bf16,
    pack_bytes,
    pack_fp8,
    pack_fp32,
    pack_w4,
    quantise_fp8,
    quantise_int8,
    quantise_w4,
)
from ...kernels.quantise.gpu import GROUP
from ..checkpoint.quantised.floats import Fp8Matrix
from ..checkpoint.stored import CodedMatrix, Weight
from .arena import Arena, Layout
from .staging import Staging
from .stored import FLOAT32, FP8_BLOCK, Parts, StoredFormat, pack_stored, stored_shape

SLAB_WEIGHTS = 1 << 24  # quantised at a time: 64 MiB in float32
Format = str | StoredFormat  # of one matrix
Matrices = dict[str, tuple[int, int]]  # [out, in] by name
Formats = dict[str, tuple[int, int, Format]]


def float_type(quantize: str) -> torch.dtype:
    """Of activations between kernels, and of what is not quantised."""
    return torch.float32 if quantize == FLOAT32 else torch.bfloat16


def plain_format(quantize: str) -> str:
    """Of the matrices that --quantize leaves as they are."""
    return FLOAT32 if quantize == FLOAT32 else "none"


# Activations of a format that has no bfloat16 ones: their type, and how many share a scale; 0: all of a token.
IN_8_BITS = {"fp8": (torch.float8_e4m3fn, 0), FP8_BLOCK: (torch.float8_e4m3fn, GROUP), "w8a8": (torch.int8, 0)}


@dataclass(frozen=True, slots=True)
class Activations:
    """Input of a linear layer: bfloat16, float32, or 8 bits with float32 scales."""

    values: torch.Tensor  # [T, in]
    scales: torch.Tensor | None = None  # [T], or [T, in / 128]

    @classmethod
    def add(cls, layout: Layout, name: str, tokens: int, columns: int, quantize: str) -> None:
        """Reserve room for the activations of a model with these weights."""
        dtype, group = IN_8_BITS.get(quantize, (float_type(quantize), 0))
        layout.add(name, dtype, tokens, columns)
        if quantize in IN_8_BITS:
            layout.add(f"{name}.scales", torch.float32, tokens, *((columns // group,) if group else ()))

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


def fill_linear(staging: Staging, arena: Arena, name: str, parts: Parts, kind: Format, *place: int) -> None:
    """Fill the room that `add_linear` reserved, or the one of many at this place, with matrices stacked by rows.

    They are stored in this format, or are quantised on the device: on the host, 8B parameters take minutes.
    """
    found: list[Weight] = [part for part in parts if part is not None]
    device = staging.device
    blocks = [part for part in found if isinstance(part, Fp8Matrix)]
    if kind == FP8_BLOCK and blocks:  # as stored_in_blocks found them
        staging.put_rows(arena[f"{name}.weight"][place].view(torch.uint8), [part.values for part in blocks])
        staging.put_rows(arena[f"{name}.scales"][place], [part.scales for part in blocks])
    elif kind in ("none", FLOAT32):
        staging.put_rows(arena[f"{name}.weight"][place], found)
    elif isinstance(kind, StoredFormat):
        stored = pack_stored([cast("CodedMatrix", part) for part in found], kind)  # as merged_format found them
        for field, tensor in stored.tensors.items():
            staging.put(arena[f"{name}.{field}"][place], tensor)
    else:
        size = sum(map(len, found)), found[0].shape[1]
        weight = device.run(lambda: torch.empty(size, dtype=torch.bfloat16, device=device.place))
        staging.put_rows(weight, found)

        def quantise() -> None:
            for field, tensor in pack(weight, kind).tensors.items():
                arena[f"{name}.{field}"][place].copy_(tensor)

        device.run(quantise)


def linear_workspace(rows: int, columns: int, kind: Format, tokens: int, capability: int) -> int:
    """Working bytes of a GEMM with this matrix, for any number of tokens up to `tokens`."""
    packed = pack_shape(rows, columns, kind)
    return max(workspace_bytes(packed, tokens, capability, strict) for strict in (False, True))


def linear_launches(rows: int, columns: int, kind: Format, tokens: int, capability: int, *, strict: bool) -> int:
    """Number of kernels that a GEMM with this matrix and this many tokens launches."""
    return launches_of(pack_shape(rows, columns, kind), tokens, capability, strict)


def pack(weight: torch.Tensor, quantize: str) -> PackedLinear:
    if quantize == "int8":
        integers, scales = _by_slabs(quantise_int8, weight)
        return pack_bytes(integers, scales, 0)
    if quantize == "int4":
        group = max(size for size in GROUPS if weight.shape[1] % size == 0)
        integers, scales, zeros = _by_slabs(partial(quantise_w4, group=group, symmetric=False), weight)
        return pack_w4(integers, scales, zeros, group)
    if quantize == "w8a8":
        (n, k), (integers, scales) = weight.shape, _by_slabs(quantise_int8, weight)
        return PackedLinear("w8a8", n, k, integers, scales)
    if quantize == "fp8":
        return pack_fp8(*_by_slabs(partial(quantise_fp8, rows=1, columns=0), weight))
    if quantize == FP8_BLOCK:
        return pack_fp8(*_by_slabs(partial(quantise_fp8, rows=GROUP, columns=GROUP), weight, GROUP))
    return pack_fp32(weight) if quantize == FLOAT32 else pack_bf16(weight)


def _by_slabs(
    quantise: Callable[[torch.Tensor], tuple[torch.Tensor | None, ...]], weight: torch.Tensor, block: int = 1
) -> list[torch.Tensor]:
    """What `quantise` makes of some rows at a time, put together: it takes four float32 copies of them."""
    rows = max(1, SLAB_WEIGHTS // weight.shape[1] // block) * block
    slabs = (weight[first : first + rows] for first in range(0, len(weight), rows))
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
