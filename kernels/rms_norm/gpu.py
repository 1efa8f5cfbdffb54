"""Norms of rows on the GPU, fused with the residual sum and optional quantisation: y = norm(x + x bias + residual).

RMSNorm or, `CENTRED`, LayerNorm, which subtracts the mean first; without a weight the sum itself. One program per row.
The sum is rounded to the residual's type before it is normalised, as if it had been stored and read again. So both
kernels, and a model that uses two steps, see the same numbers. All arithmetic is float32. A tile is [groups, values of
a group]: one group of the whole row, or groups of 128 with a scale each.

The launcher checks, picks the launch and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, jit, next_power_of_2, tl
from ..gpu.table import LaunchRow, Table, choose
from ..quantise.gpu import GROUP, group_scale, scale_groups, stored, write_groups


@jit
def row_sum(x, x_bias, residual, place, inside):
    """x + x bias + residual at these places of a row, which the residual becomes."""
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if x_bias is not None:
        value += tl.load(x_bias + place, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + place
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    return value


@jit
def norm_rows_kernel(
    x, x_bias, residual, weight, bias, out, scales, x_stride, out_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """The row is held in registers: TILE_GROUPS * COLUMNS >= SIZE."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < SIZE
    if residual is not None:
        residual += row * SIZE
    value = row_sum(x + row * x_stride, x_bias, residual, place, inside)
    if weight is not None:
        if CENTRED:
            value = tl.where(inside, value - tl.sum(tl.sum(value, 1), 0) / SIZE, 0.0)
        inverse = tl.rsqrt(tl.sum(tl.sum(value * value, 1), 0) / SIZE + eps)
        value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
    write_groups(out + row * out_stride, scales + row * GROUPS, place, inside, value, GROUPS, 0)


@jit
def rms_norm_looped_kernel(
    x, x_bias, residual, weight, out, scales, x_stride, out_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The row in pieces, read twice; the second time it comes from the cache. RMSNorm alone."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    PIECE: tl.constexpr = TILE_GROUPS * COLUMNS
    tile = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    squares = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    largest = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    if residual is not None:
        residual += row * SIZE
    for start in range(0, SIZE, PIECE):
        place = start + tile
        value = row_sum(x + row * x_stride, x_bias, residual, place, place < SIZE)
        squares += value * value
        largest = tl.maximum(largest, tl.abs(value * tl.load(weight + place, mask=place < SIZE, other=0.0)))
    inverse = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / SIZE + eps)
    whole = tl.max(largest, 1) * inverse
    tl.debug_barrier()  # the residual is read back, maybe by other threads than wrote it
    for start in range(0, SIZE, PIECE):
        place = start + tile
        inside = place < SIZE
        if residual is not None:
            value = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        else:
            value = row_sum(x + row * x_stride, x_bias, None, place, inside)
        value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        if GROUPS == 1 and (dtype == tl.int8 or dtype == tl.float8e4nv):
            tl.store(out + row * out_stride + place, stored(value, whole, dtype), mask=inside)
        else:
            write_groups(out + row * out_stride, scales + row * GROUPS, place, inside, value, GROUPS, start // COLUMNS)
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


def norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    *,
    capability: int,
    residual: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    centred: bool = False,
) -> None:
    """out = norm(x + x_bias + residual) * weight + bias, row by row; `residual` becomes the sum.

    The norm is RMSNorm or, `centred`, LayerNorm; without weight out is the sum. x and out [rows, size] may have row
    strides, and out may be x; residual is contiguous. With `scales` (float32 [rows], or [rows, size / 128]) out is int8
    or e4m3. Any number of rows, also none.
    """
    rows, size = x.shape
    lines = (weight, bias, x_bias)
    if (
        out.shape != x.shape
        or any(line is not None and line.shape != (size,) for line in lines)
        or (residual is not None and residual.shape != x.shape)
    ):
        raise ValueError(f"x is {tuple(x.shape)}: out and residual must be so too, and weight and biases [{size}]")
    if x.stride(1) != 1 or out.stride(1) != 1 or not (residual is None or residual.is_contiguous()):
        raise ValueError("the rows of x and out must be contiguous, and residual as a whole")
    groups = scale_groups(out, scales, capability)
    if rows == 0:
        return
    launch = choose(TABLE, capability, size)
    tile = next_power_of_2(size)
    if weight is not None and bias is None and not centred:  # all that the looped kernel has
        tile = min(tile, launch.tile)
    columns = GROUP if groups > 1 else tile
    shape = {
        "SIZE": size, "GROUPS": groups, "TILE_GROUPS": max(1, tile // columns), "COLUMNS": columns,
        "num_warps": launch.num_warps,
    }  # fmt: skip
    end = (out, out if scales is None else scales, x.stride(0), out.stride(0), eps)
    if size <= tile:
        norm_rows_kernel[(rows,)](x, x_bias, residual, weight, bias, *end, CENTRED=centred, **shape)
    else:
        rms_norm_looped_kernel[(rows,)](x, x_bias, residual, weight, *end, **shape)
