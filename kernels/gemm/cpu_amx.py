"""The GEMM of many rows by a tile unit, for int8 and 4-bit weights: `tile_gemm` is what `gemm` does there.

Parts have the same panels as in `gemm`, and rows are processed in blocks as there.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..compile_cache import compiled
from ..simd.amx import Amx, TileUnit
from ..simd.functions import inline
from ..simd.lanes import int64
from .tile import PANEL
from .tile_amx import ARGUMENTS, MOST_TILE_ROWS, emit_block_int8
from .tile_amx_int4 import emit_block_int4


def callables(unit: TileUnit) -> tuple[Callable[..., int], Callable[..., int], Callable[..., int]]:
    """For compiled code: configure() -> the unit's state, release(state), multiply(bits of a weight, *Block)."""

    def multiply(b: ir.IRBuilder, bits: ir.Value, *values: ir.Value) -> None:
        with b.if_else(b.icmp_signed("==", bits, int64(4))) as (four, eight):
            with four:
                b.call(emit_block_int4(b.module, unit), values)
            with eight:
                b.call(emit_block_int8(b.module, unit), values)

    return (
        inline(0, unit.configure, result=True),
        inline(1, unit.release, result=False),
        inline(1 + len(ARGUMENTS), multiply, result=False),
    )


configure, release, multiply = callables(Amx())


@compiled
def tile_gemm(
    part: int,
    parts: int,
    add: int,
    rows: int,
    in_cache: int,
    steps: int,
    a: int,
    a_stride: int,
    weights: int,
    panel_bytes: int,
    scales: int,
    panel_scale_bytes: int,
    weight_bits: int,
    group_shift: int,
    channels: int,
    out: int,
    out_stride: int,
) -> None:
    """What `gemm` does, of at least FEWEST_ROWS rows and FEWEST_INPUTS inputs; `in_cache`: blocks of rows."""
    panels = channels // PANEL
    first = panels * part // parts
    last = panels * (part + 1) // parts
    blocks = (rows + MOST_TILE_ROWS - 1) // MOST_TILE_ROWS
    unit = configure()
    for begin in range(0, blocks, in_cache):
        for panel in range(first, last, 2):
            w = weights + panel * panel_bytes
            for block in range(begin, min(blocks, begin + in_cache)):
                row = rows * block // blocks
                own = a + row * a_stride
                prefetching = block == begin and panel + 2 < last
                multiply(
                    weight_bits,
                    unit,
                    rows * (block + 1) // blocks - row,
                    own,
                    a_stride,
                    w,
                    min(2, last - panel),
                    panel_bytes,
                    steps,
                    out + row * out_stride + panel * PANEL * 4,
                    out_stride,
                    scales + panel * panel_scale_bytes,
                    panel_scale_bytes,
                    group_shift,
                    w + 2 * panel_bytes if prefetching else own,
                    add,
                )
    release(unit)
