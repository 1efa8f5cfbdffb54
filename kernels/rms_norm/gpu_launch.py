"""RMS norm of torch rows on the GPU (or interpreted): checks, picks the launch, launches. Allocates nothing."""

from __future__ import annotations

import torch

from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from ..quantise.gpu import GROUP
from ..quantise.gpu_launch import scale_groups
from .gpu import rms_norm_kernel, rms_norm_looped_kernel
from .gpu_table import TABLE


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
