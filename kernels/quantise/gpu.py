"""Symmetric quantisation as the last act of a row kernel: one scale per group of values, value = stored * scale.

int8: scale = max |x| / 127, ties to even (reference.py, without the CPU's correction). e4m3: scale = max |x| / 448. A
group of zeros gets a tiny scale and stays zeros. What is stored is decided by the type of the output; uint8 means the
bits of e4m3, for GPUs that have no such type.
"""

from ..gpu.language import jit, tl
from .reference import SMALLEST_MAXIMUM

GROUP = 128  # values per scale where a row has several: the block of FP8 GEMMs
INT8_LIMIT, E4M3_LIMIT = tl.constexpr(127.0), tl.constexpr(448.0)
_SMALLEST = tl.constexpr(SMALLEST_MAXIMUM)
_REBIAS = tl.constexpr(2.0**-120)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, ties to even


@jit
def group_scale(largest, dtype: tl.constexpr):
    """The scales of groups from their largest magnitudes."""
    LIMIT: tl.constexpr = INT8_LIMIT if dtype == tl.int8 else E4M3_LIMIT
    return tl.maximum(largest, _SMALLEST) / LIMIT


@jit
def stored(values, largest, dtype: tl.constexpr):
    """values [N, C] under the scales of largest [N], as dtype."""
    LIMIT: tl.constexpr = INT8_LIMIT if dtype == tl.int8 else E4M3_LIMIT
    values *= tl.div_rn(LIMIT, tl.maximum(largest, _SMALLEST))[:, None]
    if dtype == tl.int8:
        values = (values + _ROUND) - _ROUND
    if dtype == tl.uint8:
        # 2^-120 moves the exponent's bias from 127 to 7, subnormals to subnormals; then 20 bits are rounded away.
        magnitude = (tl.minimum(tl.abs(values), LIMIT) * _REBIAS).to(tl.int32, bitcast=True)
        magnitude = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
        codes = (magnitude | tl.where(values < 0, 0x80, 0)).to(tl.uint8)
    else:
        codes = values.to(dtype)
    return codes


@jit
def write_groups(out, scales, place, inside, values, GROUPS: tl.constexpr, first_group):
    """Store a tile [N, C], a group per row of the tile, at out + place; quantised where `out` is int8 or e4m3.

    `scales` are those of this row of the matrix, GROUPS of them; `first_group` is that of the tile's first row.
    """
    dtype: tl.constexpr = out.dtype.element_ty
    if dtype == tl.int8 or dtype == tl.float8e4nv:
        largest = tl.max(tl.abs(values), 1)
        tl.store(out + place, stored(values, largest, dtype), mask=inside)
        group = first_group + tl.arange(0, values.shape[0])
        tl.store(scales + group, group_scale(largest, dtype), mask=group < GROUPS)
    else:
        tl.store(out + place, values.to(dtype), mask=inside)
