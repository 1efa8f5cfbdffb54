"""The two halves of a LoRA adapter's part of a projection, for rows of one adapter: out += (x A^T) B^T.

Both run on the GEMM's micro-kernel, in float32 or bfloat16: a rank is padded to whole panels. So here too each output
is one sum in ascending order, and a row's result does not depend on its batch.
"""

from __future__ import annotations

from ..compile_cache import inlined
from ..gemm.cpu import tile
from ..gemm.tile import PANEL
from ..quantise.cpu import plain_row
from ..simd.formats import WEIGHT_BITS, Tag
from ..simd.functions import by_format

weight_bits = by_format(lambda weight_format: WEIGHT_BITS[weight_format])


@inlined
def shrink(
    tag: Tag, rows: int, k: int, x: int, x_stride: int, a: int, rank: int, sums: int, out: int, out_stride: int
) -> None:
    """out[rows, rank] = x[rows, k] @ a, for at most a tile's rows; `sums` holds rows * rank float32 meanwhile.

    Strides are in bytes. x and out are GEMM input rows; k is a multiple of 32, rank of 16.
    """
    for panel in range(rank // PANEL):
        tile(
            tag,
            rows,
            x,
            x_stride,
            a + panel * (k * PANEL * weight_bits(tag) // 8),
            k * weight_bits(tag) // 32,
            sums + panel * PANEL * 4,
            rank * 4,
            0,
            0,
            x,
            0,
        )
    for row in range(rows):
        plain_row(tag, sums + row * rank * 4, rank, out + row * out_stride, 0)


@inlined
def expand(
    tag: Tag,
    rows: int,
    rank: int,
    x: int,
    x_stride: int,
    b: int,
    first: int,
    last: int,
    out: int,
    out_stride: int,
) -> None:
    """out[rows, channels of the panels first to last] += x[rows, rank] @ b."""
    for panel in range(first, last):
        tile(
            tag,
            rows,
            x,
            x_stride,
            b + panel * (rank * PANEL * weight_bits(tag) // 8),
            rank * weight_bits(tag) // 32,
            out + panel * PANEL * 4,
            out_stride,
            0,
            0,
            x,
            1,
        )
