"""The operands of one GEMM launch, checked; the tile that fits the weight; and how much workspace a launch needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from .gpu_table import PLAIN, ROWS_AT_ONCE, Few, Launch, Library, Many, bucket_sizes, launch_for, split_of
from .gpu_weights import PackedLinear

Tensor = torch.Tensor
# Activations of the other formats are bfloat16.
ACTIVATIONS = {"w8a8": torch.int8, "fp8": torch.float8_e4m3fn, "fp32": torch.float32}
SCALED = ("w8a8", "fp8")  # activations
# In front of a workspace, for every layer and launch that shares it: an int32 for each tile of a launch with K split.
# Such tiles are at most half the 264 programs, for each of 256 / 32 tiles of rows (gpu_table.py): 1,056.
COUNTER_BYTES = 4 * 2048
RESULTS = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Operands:
    """y = x W^T (+ bias) (+ residual) into out."""

    x: Tensor
    x_scales: Tensor | None
    weight: PackedLinear
    out: Tensor
    workspace: Tensor | None
    bias: Tensor | None
    residual: Tensor | None

    def space(self, size: int) -> Tensor:
        """`size` bytes of workspace, allocated only if the caller gave none. Counters in front are 0."""
        if self.workspace is None:
            return torch.zeros(size, dtype=torch.uint8, device=self.x.device)
        if self.workspace.dtype != torch.uint8 or self.workspace.numel() < size:
            raise ValueError(
                f"the workspace holds {self.workspace.numel()} x {self.workspace.dtype}; this GEMM needs {size} bytes "
                "of uint8: ask workspace_bytes() for the largest number of rows"
            )
        return self.workspace[:size]

    def in_parts(self, rows: int) -> Iterator[Operands]:
        """So many rows at a time. A launch that has one workspace for all parts runs them one after another."""
        for start in range(0, len(self.x), rows):
            part = slice(start, start + rows)
            yield replace(
                self,
                x=self.x[part],
                x_scales=self.x_scales if self.x_scales is None or self.x_scales.ndim == 0 else self.x_scales[part],
                out=self.out[part],
                residual=None if self.residual is None else self.residual[part],
            )


def checked(
    x: Tensor, x_scales: Tensor | None, weight: PackedLinear, out: Tensor | None, workspace: Tensor | None,
    bias: Tensor | None, residual: Tensor | None,
) -> Operands:  # fmt: skip
    """The operands, with `out` allocated if missing. Raises ValueError naming what does not fit."""
    kind = weight.format
    if x.ndim != 2 or x.shape[1] != weight.k or x.stride(1) != 1:
        raise ValueError(f"x is {list(x.shape)}; it must be [rows, {weight.k}] with contiguous rows")
    if x.dtype != ACTIVATIONS.get(kind, torch.bfloat16):
        raise ValueError(f"x is {x.dtype}; {kind} takes {ACTIVATIONS.get(kind, torch.bfloat16)}")
    m = x.shape[0]
    _check_scales(kind, m, x_scales, weight)
    if out is None:
        out = torch.empty(m, weight.n, dtype=torch.float32 if kind == "fp32" else torch.bfloat16, device=x.device)
    for name, tensor, shape in (("out", out, (m, weight.n)), ("residual", residual, (m, weight.n)),
                                ("bias", bias, (weight.n,))):  # fmt: skip
        if tensor is not None and (tuple(tensor.shape) != shape or not tensor.is_contiguous()):
            raise ValueError(f"{name} is {list(tensor.shape)}; it must be {list(shape)} and contiguous")
    if out.dtype not in RESULTS:
        raise ValueError(f"out is {out.dtype}; it must be torch.bfloat16, or torch.float32 for logits")
    if kind == "fp32" and out.dtype != torch.float32:
        raise ValueError(f"out is {out.dtype}; fp32 gives torch.float32")
    if out.dtype == torch.float32 and (bias is not None or residual is not None):
        raise ValueError("out is torch.float32, which takes neither bias nor residual: add them to it afterwards")
    return Operands(x, x_scales, weight, out, workspace, bias, residual)


def _check_scales(kind: str, m: int, scales: Tensor | None, weight: PackedLinear) -> None:
    if kind not in SCALED:
        if scales is not None:
            wide = ACTIVATIONS.get(kind, torch.bfloat16)
            raise ValueError(f"x has scales, and {kind} takes no scales: its activations are {wide}")
        return
    allowed: list[tuple[int, ...]] = [(m,), ()]
    if weight.group == 128:
        allowed = [(m, -(-weight.k // 128))]
    elif kind == "w8a8":
        allowed = [(m,)]
    if scales is None or tuple(scales.shape) not in allowed or scales.dtype != torch.float32:
        found = "missing" if scales is None else f"{list(scales.shape)} {scales.dtype}"
        meant = " or ".join(str(list(shape)) for shape in allowed)
        raise ValueError(f"the scales of x are {found}; these weights need {meant} float32")


def workspace_bytes(weight: PackedLinear, rows: int, capability: int, strict: bool = False) -> int:
    """Bytes of workspace with which this layer can be launched for any number of rows up to `rows`."""
    sizes = bucket_sizes(weight.format, rows)
    return max(bytes_of(weight, size, launch_for(weight.format, capability, size, strict)) for size in sizes)


def bytes_of(weight: PackedLinear, rows: int, launch: Launch) -> int:
    match launch:
        case Few():
            split = split_of(with_room(weight, launch), weight.n, weight.k)
            return COUNTER_BYTES + 4 * split * min(rows, ROWS_AT_ONCE) * weight.n if split > 1 else 0
        case Library():
            return 0 if weight.format in PLAIN else COUNTER_BYTES + 2 * weight.k * slab_rows(weight, launch)
        case Many():
            return 0


def launches_of(weight: PackedLinear, rows: int, capability: int, strict: bool) -> int:
    """Number of kernels launched by one product with this many rows."""
    launch = launch_for(weight.format, capability, rows, strict)
    match launch:
        case Few():
            return -(-rows // ROWS_AT_ONCE)
        case Library() if weight.format not in PLAIN:
            return 2 * -(-weight.n // slab_rows(weight, launch))
        case Many() | Library():
            return 1


def split_space(space: Tensor, grid: tuple[int, int, int], sums: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Parts of this type and counters, in a workspace of `bytes_of`. None where K is not split: the grid is (tiles of
    channels, split, tiles of rows).
    """
    if grid[1] == 1:
        return None, None
    assert 4 * grid[0] * grid[2] <= COUNTER_BYTES, f"a launch of {grid} has more tiles than there are counters"
    return space[COUNTER_BYTES:].view(sums), space[:COUNTER_BYTES].view(torch.int32)


def slab_rows(weight: PackedLinear, launch: Library) -> int:
    """Rows of weights unpacked at a time: a multiple of 128, or all."""
    return min(max(launch.slab_bytes // (256 * weight.k), 1) * 128, weight.n)


def with_room(weight: PackedLinear, launch: Few) -> Few:
    """The launch with a tile whose sums have registers beside what this weight adds.

    Minima: eight warps share the sums (with four, Triton 3.9 spilled 29 values), and with 16 rows a buffer less is in
    flight, or two values are spilled on sm_80. A scale for every 16 weights: a tile of 64 rows or more has 64 channels.
    With 128, one program of 64 rows would fill a multiprocessor, and one of 128 rows spill on sm_90.
    """
    if weight.group == 16 and launch.block_m >= 64:
        return replace(launch, block_n=64)
    if weight.minima is not None and launch.block_m <= 32 and launch.block_n == 128:
        return replace(launch, warps=max(launch.warps, 8), stages=launch.stages - (launch.block_m == 16))
    return launch
