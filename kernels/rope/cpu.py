"""Finishes one head of a projected query or key: add the bias, normalise (over it or over all heads), rotate, scale.

A head is padded with zeros to two equal halves of whole vectors (`head_positions`), so that any head size rotates in
whole vectors; the table row is padded alike. The result is contiguous float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..rms_norm.cpu import mean_and_inverse
from ..simd.arithmetic import fma
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import LANES, float32, int64, scaled, splat, store, vector_at


def padded_head(head_dim: int) -> int:
    """Padded size of a head: two halves, each a multiple of 16."""
    half = -(-head_dim // 2)
    return 2 * (-(-half // LANES) * LANES)


def head_positions(head_dim: int) -> npt.NDArray[np.int64]:
    """The position of each dimension of a head in its padded form."""
    dimensions = np.arange(head_dim)
    return np.where(dimensions < head_dim // 2, dimensions, dimensions - head_dim // 2 + padded_head(head_dim) // 2)


def _rope_head(b: ir.IRBuilder, _cache_format: str, *arguments: ir.Value) -> None:
    x, bias, gain, row, row_bias, vectors, rotation, half, out, centred, size, eps, factor = arguments
    mean, inverse = mean_and_inverse(b, row, vectors, size, eps, centred, row_bias)
    wanted = b.icmp_signed("!=", vectors, int64(0))
    means, inverses = (splat(b, b.select(wanted, *pair)) for pair in ((mean, float32(0.0)), (inverse, float32(1.0))))
    factors = splat(b, factor)
    half_vectors, half_bytes = b.sdiv(half, int64(LANES)), b.mul(half, int64(4))

    def value(index: ir.Value, upper: bool) -> ir.Value:
        starts = [b.add(start, half_bytes) if upper else start for start in (x, bias, gain)]
        raw, added, gains = (vector_at(b, start, index) for start in starts)
        return b.fmul(b.fmul(b.fsub(b.fadd(raw, added), means), inverses), gains)

    def body(index: ir.Value, _: Values) -> Values:
        low, high = value(index, False), value(index, True)
        cos = vector_at(b, rotation, index)
        sin = vector_at(b, b.add(rotation, half_bytes), index)
        turned_low = fma(b, low, cos, b.fneg(b.fmul(high, sin)))
        turned_high = fma(b, high, cos, b.fmul(low, sin))
        for turned, position in ((turned_low, index), (turned_high, b.add(index, half_vectors))):
            store(b, b.fmul(turned, factors), scaled(b, out, position, 4 * LANES))
        return []

    loop(b, half_vectors, [], body)


# rope_head(cache tag, x, bias, gain, row, row's bias, vectors, table row, half, out, centred?, size, eps, factor):
# addresses of padded float32 rows (zeros for no bias, ones for no norm); the vectors of 16 values at `row` over which
# the norm goes (0: no norm), and as float32 how many of its values count; the padded half in values; epsilon, a factor
rope_head = written_kernel("rope_head", "iiiiiiiiiifff", _rope_head)
