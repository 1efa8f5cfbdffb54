"""The memory layout of GEMM input rows: k values (a multiple of 32) per row, written by one of the row kernels.

    float32, bfloat16   the values; rounded to bfloat16, but in float32 again, where the CPU does not multiply pairs
    int8                a header of one cache line: float32 scale, int32 correction, int32 number n of wide quads;
                        k signed bytes; then n entries of (int32 quad, 4 signed bytes), and room for
                        k / 32 and a spare one
    int4, stored        per group of 32 values, whose scale is 2 ** e, a cache line: 32 signed bytes; float32
                        m = 1.5 * 2 ** (23 + e); int32: the bits of m, less 8 times the sum of the bytes; the same
                        less 128 times; the same of the first and the second half, less 32 times; the sums of the
                        values of the group, and of its first and second half, as three float32

A wide quad is four consecutive values, at least one of which does not fit into a byte. The bytes among the k hold the
low part, the entry the high part; the value is 64 * high + low (see reference.py). The correction, 128 * sum of the
values, undoes what was added to the weights to make them unsigned.

A group's int32 are the start values for the sums of its products with unsigned codes of 4, 8 and 6 bits, whose centre
is 8, 128 and 32. Read as a float32, the sum is then m + 2 ** e times the exact sum of products: one subtraction
converts and scales it. They are kept because each is read once for every 16 channels.
"""

from __future__ import annotations

from ..simd.dot import K_PER_STEP, broadcast_format
from ..simd.formats import GROUP

SCALE, CORRECTION, WIDE_QUADS, HEADER_BYTES = 0, 4, 8, 64
ENTRY_BYTES = 8
GROUP_OFFSET = GROUP
GROUP_STARTS = {4: GROUP + 4, 8: GROUP + 8, 6: GROUP + 12}  # by the bits of the codes; of 6 bits for each half
CENTRES = {4: 8, 6: 32, 8: 128}  # of codes of so many bits
GROUP_SUM, GROUP_SUMS, GROUP_BYTES = GROUP + 20, GROUP + 24, GROUP + 32
SCALE_TO_OFFSET = (23 << 23) + (1 << 22)  # between the float32 bits of 2 ** e and of m
WIDE_SHIFT = 6  # 64 * high + low
QUADS_A_WIDE_ONE = 8  # at most one quad in 8 is wide, otherwise the row has a plain scale
MOST_WIDE_QUADS = 256


def row_bytes(weight_format: str, k: int) -> int:
    """Bytes of a row of k values."""
    if weight_format.startswith("int4") or weight_format == "stored":
        return k // GROUP * GROUP_BYTES
    if weight_format == "int8":
        return HEADER_BYTES + k + (k // 4 // QUADS_A_WIDE_ONE + 1) * ENTRY_BYTES
    return k * 4 // K_PER_STEP[broadcast_format(weight_format)]
