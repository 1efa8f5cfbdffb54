"""silu(gate) * up of torch rows on the GPU (or interpreted): checks, picks the launch, launches. Allocates nothing."""

from __future__ import annotations

import torch

from ..gpu.language import cdiv, next_power_of_2
from ..gpu.table import choose
from ..quantise.gpu import GROUP
from ..quantise.gpu_launch import scale_groups
from .gpu import silu_mul_kernel, silu_mul_row_kernel
from .gpu_table import ROWS, TILES


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
