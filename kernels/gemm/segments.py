"""The table by which the GEMM finds the parts of a matrix that keeps its checkpoint's own codes and scales.

Int64: the number of segments, then the segments, each at a cache line's start. A segment is a range of whole panels of
one layout (codes.py), so that a merged query, key and value projection may mix 4 and 6 bits. A matrix that no layout
fits is the sum of two segments over the same panels, high bytes and low bytes, the second with ADD.

Per panel of 16 channels: the codes as tile_stored.py describes them, and rows of 16 scales, one row for each group of
inputs, in the types of the file; minima likewise. Places are bytes from the segment's own start, so that a packed
matrix may be moved, or kept in a file.
"""

from __future__ import annotations

from .codes import MinimumKind, ScaleKind

FIRST_PANEL, PANELS, BITS, CODES = range(4)
SCALES, UPPER_SCALES, MINIMA, UPPER_MINIMA = range(4, 8)  # places of the first panel's
SCALE_KIND, SCALE_STRIDE, MINIMUM_KIND, MINIMUM_STRIDE = range(8, 12)  # strides: bytes of a row of 16
SHIFT, SPLIT = range(12, 14)  # group of 32 inputs g: row g >> SHIFT; with SPLIT rows 2 g and 2 g + 1 for its halves
ZERO, ADD = range(14, 16)  # the code of weight 0, where there are no minima; 1: adds to what the segment before wrote
IS_FP4 = 16  # 1: codes of 4 bits are numbers of FP4 (tile_fp4.py)
SEGMENT_BYTES = 24 * 8
SEGMENTS_START = 64

SCALE_KINDS: dict[ScaleKind, int] = {"float16": 0, "bfloat16": 1, "float32": 2, "two-level": 3}
MINIMUM_KINDS: dict[MinimumKind, int] = {"none": 0, "zeros": 1, "float16": 2, "two-level": 3}
SCALE_STRIDES: dict[ScaleKind, int] = {"float16": 32, "bfloat16": 32, "float32": 64, "two-level": 16}
MINIMUM_STRIDES: dict[MinimumKind, int] = {"none": 0, "zeros": 16, "float16": 32, "two-level": 16}
UPPER_STRIDE = 32
UPPER_SHIFT = 3  # 8 groups of 32 inputs have one upper scale
ONE_SCALE = 31  # as SHIFT: all inputs of a channel share one


def rows_of_scales(k: int, group: int) -> int:
    """How many rows of 16 scales a panel of k inputs has."""
    return -(-k // group)
