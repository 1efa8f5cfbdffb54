"""silu(gate) * up on the GPU, optionally quantised. A row of x is all gates, then all ups. All arithmetic is float32.

Elementwise, so a row is cut into tiles; only a scale over the whole row needs a program that sees the whole row. The
launcher checks, picks the launch and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import cdiv, jit, next_power_of_2, tl
from ..gpu.table import LaunchRow, Table, choose
from ..quantise.gpu import GROUP, group_scale, scale_groups, stored, write_groups


@jit
def gated(x, place, inside, SIZE: tl.constexpr):
    gate = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + SIZE + place, mask=inside, other=0.0).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@jit
def silu_mul_kernel(
    x, out, scales, x_stride,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program per row and tile: not quantised, or with a scale per group of COLUMNS."""
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * (TILE_GROUPS * COLUMNS)
    place = start + tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < SIZE
    value = gated(x + row * x_stride, place, inside, SIZE)
    write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, start // COLUMNS)


@jit
def silu_mul_row_kernel(x, out, scales, x_stride, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """A program per row, one scale per row: the values are computed twice, the second time from the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    tile = tl.arange(0, COLUMNS)[None, :]
    largest = tl.zeros([1, COLUMNS], tl.float32)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        largest = tl.maximum(largest, tl.abs(gated(x + row * x_stride, place, place < SIZE, SIZE)))
    whole = tl.max(largest, 1)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = gated(x + row * x_stride, place, place < SIZE, SIZE)
        tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=place < SIZE)
    tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))


@dataclass(frozen=True, slots=True)
class SiluMulLaunch:
    tile: int  # values per program, or per turn of the loop where a program owns a row
    num_warps: int


# Chosen by row size, so a row's bits never depend on its batch.
TILES: Table[SiluMulLaunch] = {
    80: (LaunchRow(None, SiluMulLaunch(1024, 4), "compiled: 30 registers, no spills; not measured"),)
}
ROWS: Table[SiluMulLaunch] = {
    80: (
        LaunchRow(4096, SiluMulLaunch(4096, 8), "compiled: 32 registers, no spills; not measured"),
        LaunchRow(None, SiluMulLaunch(8192, 16), "compiled: 40 registers, no spills; not measured"),
    ),
}


def silu_mul(x: torch.Tensor, out: torch.Tensor, *, capability: int, scales: torch.Tensor | None = None) -> None:
    """out [rows, size] = silu(x[:, :size]) * x[:, size:]. x may have a row stride; out is contiguous.

    With `scales` (float32 [rows], or [rows, size / 128]) out is int8 or e4m3.
    """
    rows, size = out.shape
    if x.shape != (rows, 2 * size):
        raise ValueError(f"out is {tuple(out.shape)}, so x must be [{rows}, {2 * size}], and is {tuple(x.shape)}")
    if x.stride(1) != 1 or not out.is_contiguous():
        raise ValueError("the rows of x must be contiguous, and out as a whole")
    groups = scale_groups(out, scales, capability)
    if rows == 0:
        return
    if scales is not None and groups == 1:
        launch = choose(ROWS, capability, size)
        silu_mul_row_kernel[(rows,)](
            x, out, scales, x.stride(0), SIZE=size, COLUMNS=min(launch.tile, next_power_of_2(size)),
            num_warps=launch.num_warps,
        )  # fmt: skip
        return
    launch = choose(TILES, capability, size)
    columns = GROUP if groups > 1 else launch.tile
    silu_mul_kernel[(rows, cdiv(size, launch.tile))](
        x, out, out if scales is None else scales, x.stride(0),
        SIZE=size, GROUPS=groups, TILE_GROUPS=launch.tile // columns, COLUMNS=columns, num_warps=launch.num_warps,
    )  # fmt: skip
