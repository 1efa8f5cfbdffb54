"""silu(gate) * up on the GPU, maybe quantised. A row of x is the gates, then the ups. All arithmetic is float32.

Elementwise, so a row is cut into tiles; only a scale over the whole row needs a program that sees the whole row.
"""

from ..gpu.language import jit, tl
from ..quantise.gpu import group_scale, stored, write_groups


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
