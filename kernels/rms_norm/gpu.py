"""RMS norm on the GPU, fused with the residual sum and optional quantisation: y = rms_norm(x + residual).

One program per row. The sum is rounded to the residual's type before it is normalised, as if it had been stored and
read again. So both kernels, and a model that uses two steps, see the same numbers. All arithmetic is float32.
A tile is [groups, values of a group]: one group of the whole row, or groups of 128 with a scale each.

The launcher checks, picks the launch and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import jit, next_power_of_2, tl
from ..gpu.table import LaunchRow, Table, choose
from ..quantise.gpu import GROUP, group_scale, scale_groups, stored, write_groups


@jit
def rms_norm_kernel(
    x, residual, weight, out, scales, x_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """The row is held in registers: TILE_GROUPS * COLUMNS >= SIZE."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < SIZE
    value = tl.load(x + row * x_stride + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * SIZE + place
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(tl.sum(value * value, 1), 0) / SIZE + eps)
    value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, 0)


@jit
def rms_norm_looped_kernel(
    x, residual, weight, out, scales, x_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """The row in pieces, read twice; the second time it comes from the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    PIECE: tl.constexpr = TILE_GROUPS * COLUMNS
    tile = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    squares = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    largest = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    for start in range(0, SIZE, PIECE):
        place = start + tile
        value = tl.load(x + row * x_stride + place, mask=place < SIZE, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            at = residual + row * SIZE + place
            value += tl.load(at, mask=place < SIZE, other=0.0).to(tl.float32)
            rounded = value.to(residual.dtype.element_ty)
            tl.store(at, rounded, mask=place < SIZE)
            value = rounded.to(tl.float32)
        squares += value * value
        largest = tl.maximum(largest, tl.abs(value * tl.load(weight + place, mask=place < SIZE, other=0.0)))
    inverse = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / SIZE + eps)
    whole = tl.max(largest, 1) * inverse
    tl.debug_barrier()  # the residual is read back, maybe by other threads than wrote it
    for start in range(0, SIZE, PIECE):
        place = start + tile
        inside = place < SIZE
        if HAS_RESIDUAL:
            value = tl.load(residual + row * SIZE + place, mask=inside, other=0.0).to(tl.float32)
        else:
            value = tl.load(x + row * x_stride + place, mask=inside, other=0.0).to(tl.float32)
        value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        if GROUPS == 1 and (dtype == tl.int8 or dtype == tl.float8e4nv):
            tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=inside)
        else:
            write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, start // COLUMNS)
    if GROUPS == 1 and (dtype == tl.int8 or dtype == tl.float8e4nv):
        tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))


@dataclass(frozen=True, slots=True)
class RmsNormLaunch:
    tile: int  # values held at a time; a longer row takes the looped kernel
    num_warps: int


# Chosen by row size, not by the number of rows, so no row's bits depend on the batch.
# 16 values per thread are two 16-byte loads of bf16 in flight; longer rows get 32 before they get more warps.
TABLE: Table[RmsNormLaunch] = {
    80: (
        LaunchRow(2048, RmsNormLaunch(2048, 4), "compiled: at most 32 registers, no spills; not measured"),
        LaunchRow(4096, RmsNormLaunch(4096, 8), "compiled: 32 registers, quantised 40, no spills; not measured"),
        LaunchRow(8192, RmsNormLaunch(8192, 8), "compiled: 53 registers, no spills; not measured"),
        LaunchRow(16384, RmsNormLaunch(16384, 16), "compiled: 64 registers, no spills; not measured"),
        LaunchRow(None, RmsNormLaunch(8192, 16), "compiled: looped, 50 registers, int8 88, no spills; not measured"),
    ),
}


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    capability: int,
    residual: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """out = rms_norm(x + residual) * weight, row by row; `residual` becomes x + residual.

    x [rows, size] may have a row stride; out and residual are contiguous. With `scales` (float32 [rows], or
    [rows, size / 128]) out is int8 or e4m3. Any number of rows, also none.
    """
    rows, size = x.shape
    if out.shape != x.shape or weight.shape != (size,) or (residual is not None and residual.shape != x.shape):
        raise ValueError(f"x is {tuple(x.shape)}: out and residual must be so too, and weight [{size}]")
    if x.stride(1) != 1 or not out.is_contiguous() or not (residual is None or residual.is_contiguous()):
        raise ValueError("the rows of x must be contiguous, and out and residual as a whole")
    groups = scale_groups(out, scales, capability)
    if rows == 0:
        return
    launch = choose(TABLE, capability, size)
    tile = min(launch.tile, next_power_of_2(size))
    columns = GROUP if groups > 1 else tile
    kernel = rms_norm_kernel if size <= tile else rms_norm_looped_kernel
    kernel[(rows,)](
        x, x if residual is None else residual, weight, out, out if scales is None else scales, x.stride(0), eps,
        SIZE=size, GROUPS=groups, TILE_GROUPS=max(1, tile // columns), COLUMNS=columns,
        HAS_RESIDUAL=residual is not None, num_warps=launch.num_warps,
    )  # fmt: skip
