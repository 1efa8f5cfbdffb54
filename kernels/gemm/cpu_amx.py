"""The GEMM by a tile unit, for bfloat16, int8 and 4-bit weights: `tile_gemm` is what `gemm` does there.

Parts have the same panels as in `gemm`, and rows are processed in blocks as there.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..compile_cache import compiled
from ..simd.amx import TILE_ROWS, Amx, TileUnit
from ..simd.functions import inline
from ..simd.lanes import int64
from .tile import PANEL
from .tile_amx import ARGUMENTS, MOST_TILE_ROWS, Block, emit_block_int8
from .tile_amx_bfloat16 import emit_block_bfloat16
from .tile_amx_int4 import emit_block_int4

_BLOCKS = {4: emit_block_int4, 8: emit_block_int8, 16: emit_block_bfloat16}  # by the bits of a weight


def callables(unit: TileUnit) -> tuple[Callable[..., int], Callable[..., int], Callable[..., int]]:
    """For compiled code: configure(rows) -> the unit's state, release(state), multiply(bits of a weight, *Block)."""

    def multiply(b: ir.IRBuilder, bits: ir.Value, *values: ir.Value) -> None:
        few = b.icmp_signed("<=", Block(*values).rows, int64(TILE_ROWS))
        for own_bits, emit in _BLOCKS.items():
            with b.if_then(b.icmp_signed("==", bits, int64(own_bits))), b.if_else(few) as (one, two):
                with one:
                    b.call(emit(b.module, unit, 1), values)
                with two:
                    b.call(emit(b.module, unit, 2), values)

    return (
        inline(1, unit.configure, result=True),
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
    """What `gemm` does, of at least 64 bytes of inputs; `in_cache`: blocks of rows."""
    panels = channels // PANEL
    first = panels * part // parts
    last = panels * (part + 1) // parts
    blocks = (rows + MOST_TILE_ROWS - 1) // MOST_TILE_ROWS
    unit = configure(min(rows, TILE_ROWS))  # several blocks have at least as many each
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
