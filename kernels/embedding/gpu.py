"""Gather rows of a matrix by ids on the device: token embeddings, and hidden rows for the LM head.

An id outside the matrix (padding: -1) gives a row of zeros and reads nothing. The launcher checks, picks the launch
and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, cdiv, jit, tl
from ..gpu.table import LaunchRow, Table, choose


@jit(do_not_specialize=["count"])  # it varies: a new form would be compiled while serving
def gather_rows_kernel(
    ids, table, out, count, factor, SIZE: tl.constexpr, TILE: tl.constexpr, SCALED: tl.constexpr
):  # fmt: skip
    """A program per id and tile of the row; `count` is the number of rows in the table."""
    await_inputs()
    row = tl.program_id(0)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    index = tl.load(ids + row)
    readable = tl.where((index >= 0) & (index < count), SIZE, 0)
    value = tl.load(table + index.to(tl.int64) * SIZE + place, mask=place < readable, other=0.0)
    if SCALED:
        value = (value.to(tl.float32) * factor).to(table.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * SIZE + place, value, mask=place < SIZE)


@dataclass(frozen=True, slots=True)
class GatherLaunch:
    tile: int  # values per program
    num_warps: int


# One launch for every size: the work is a copy.
TABLE: Table[GatherLaunch] = {
    80: (LaunchRow(None, GatherLaunch(1024, 4), "compiled: 16 registers, no spills; not measured"),)
}


def gather_rows(
    ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, capability: int, factor: float = 1.0
) -> None:
    """out[i] = factor * table[ids[i]], zeros if the id is outside the table. ids int32 [rows], table [count, size]."""
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
        ids, table, out, count, factor, SIZE=size, TILE=launch.tile, SCALED=factor != 1.0, num_warps=launch.num_warps
    )
