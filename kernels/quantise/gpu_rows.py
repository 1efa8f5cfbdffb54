"""Rows quantised for a GEMM on the GPU where no kernel before it can: a row of attention's output has many writers."""

from ..gpu.language import jit, tl
from .gpu import group_scale, stored


@jit
def quantise_rows_kernel(x, out, scales, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """A program and a scale per row; the row is read twice, the second time from the cache."""
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    tile = tl.arange(0, COLUMNS)[None, :]
    largest = tl.zeros([1, COLUMNS], tl.float32)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = tl.load(x + row * SIZE + place, mask=place < SIZE, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(value))
    whole = tl.max(largest, 1)
    for start in range(0, SIZE, COLUMNS):
        place = start + tile
        value = tl.load(x + row * SIZE + place, mask=place < SIZE, other=0.0).to(tl.float32)
        tl.store(out + row * SIZE + place, stored(value, whole, dtype), mask=place < SIZE)
    tl.store(scales + row + tl.arange(0, 1), group_scale(whole, dtype))
