"""Quantises torch rows on the GPU (or interpreted): checks, picks the launch, launches. Allocates nothing."""

from __future__ import annotations

import torch

from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from .gpu_launch import scale_groups
from .gpu_rows import quantise_rows_kernel
from .gpu_table import TABLE


def quantise_rows(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, *, capability: int) -> None:
    """out int8 or e4m3 [rows, size], scales float32 [rows]: x = out * scales, as nearly as out's type can. Any rows."""
    rows, size = out.shape
    if x.shape != out.shape or not (x.is_contiguous() and out.is_contiguous()):
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} must be contiguous and of one shape")
    if scale_groups(out, scales, capability) > 1:
        raise ValueError(f"scales are {tuple(scales.shape)}: one per row is made here, [{rows}]")
    if rows == 0:
        return
    launch = choose(TABLE, capability, size)
    quantise_rows_kernel[(rows,)](
        x, out, scales, SIZE=size, COLUMNS=min(launch.tile, next_power_of_2(size)), num_warps=launch.num_warps
    )
