"""Rows of a torch matrix by ids on the device: the embedding, and the last rows for the LM head. Allocates nothing."""

from __future__ import annotations

import torch

from ..gpu.language import cdiv
from ..gpu.table import choose
from .gpu import gather_rows_kernel
from .gpu_table import TABLE


def gather_rows(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, capability: int) -> None:
    """out[i] = table[ids[i]], zeros where the id is outside the table. ids int32 [rows], table [count, size]."""
    (rows,), (count, size) = ids.shape, table.shape
    if ids.dtype != torch.int32 or out.shape != (rows, size) or out.dtype != table.dtype:
        raise ValueError(
            f"ids must be int32 and out {table.dtype} [{rows}, {size}]: ids are {ids.dtype}, "
            f"out is {out.dtype} {tuple(out.shape)}"
        )
    if not (ids.is_contiguous() and table.is_contiguous() and out.is_contiguous()):
        raise ValueError("ids, table and out must be contiguous")
    if rows == 0:
        return
    launch = choose(TABLE, capability, size)
    gather_rows_kernel[(rows, cdiv(size, launch.tile))](
        ids, table, out, count, SIZE=size, TILE=launch.tile, num_warps=launch.num_warps
    )
