"""RMS norm on the GPU, with what stands before and after it fused in: y = rms_norm(x + residual), maybe quantised.

One program per row. The sum is rounded to the residual's type before it is normalised, as if it had been stored and
read again, so both kernels, and a model that does it in two steps, see the same numbers. All arithmetic is float32.
A tile is [groups, values of a group]: one group of the whole row, or groups of 128 with a scale each.
"""

from ..gpu.language import jit, tl
from ..quantise.gpu import group_scale, stored, write_groups


@jit
def rms_norm_kernel(
    x, residual, weight, out, scales, x_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """The row is held in registers: TILE_GROUPS * COLUMNS >= SIZE."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < SIZE
    value = tl.load(x + row * x_stride + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * SIZE + place
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(tl.sum(value * value, 1), 0) / SIZE + eps)
    value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, 0)


@jit
def rms_norm_looped_kernel(
    x, residual, weight, out, scales, x_stride, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, TILE_GROUPS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """The row in pieces, read twice; the second time it comes from the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    PIECE: tl.constexpr = TILE_GROUPS * COLUMNS
    tile = tl.arange(0, TILE_GROUPS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    squares = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    largest = tl.zeros([TILE_GROUPS, COLUMNS], tl.float32)
    for start in range(0, SIZE, PIECE):
        place = start + tile
        value = tl.load(x + row * x_stride + place, mask=place < SIZE, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            at = residual + row * SIZE + place
            value += tl.load(at, mask=place < SIZE, other=0.0).to(tl.float32)
            rounded = value.to(residual.dtype.element_ty)
            tl.store(at, rounded, mask=place < SIZE)
            value = rounded.to(tl.float32)
        squares += value * value
        largest = tl.maximum(largest, tl.abs(value * tl.load(weight + place, mask=place < SIZE, other=0.0)))
    inverse = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / SIZE + eps)
    whole = tl.max(largest, 1) * inverse
    tl.debug_barrier()  # the residual is read back, maybe by other threads than wrote it
    for start in range(0, SIZE, PIECE):
        place = start + tile
        inside = place < SIZE
        if HAS_RESIDUAL:
            value = tl.load(residual + row * SIZE + place, mask=inside, other=0.0).to(tl.float32)
        else:
            value = tl.load(x + row * x_stride + place, mask=inside, other=0.0).to(tl.float32)
        value = value * inverse * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        if GROUPS == 1 and (dtype == tl.int8 or dtype == tl.float8e4nv):
            tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=inside)
        else:
            write_groups(out + row * SIZE, scales + row * GROUPS, place, inside, value, GROUPS, start // COLUMNS)
    if GROUPS == 1 and (dtype == tl.int8 or dtype == tl.float8e4nv):
        tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))
