"""Gather rows of a matrix by ids that are on the device: the embedding of tokens, and the hidden rows for the LM head.

An id outside the matrix (padding: -1) gives a row of zeros, and reads nothing.
"""

from ..gpu.language import jit, tl


@jit(do_not_specialize=["count"])  # it varies: a new form would be compiled while serving
def gather_rows_kernel(ids, table, out, count, SIZE: tl.constexpr, TILE: tl.constexpr):
    """A program per id and tile of the row; `count` is the number of rows in the table."""
    row = tl.program_id(0)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    index = tl.load(ids + row)
    readable = tl.where((index >= 0) & (index < count), SIZE, 0)
    value = tl.load(table + index.to(tl.int64) * SIZE + place, mask=place < readable, other=0.0)
    tl.store(out + row.to(tl.int64) * SIZE + place, value, mask=place < SIZE)
