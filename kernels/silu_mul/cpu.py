"""silu(gate) * up of one row, written as GEMM activations. The gates are x[:k], the ups x[k:2k].

The clamped form of reference.py costs five instructions of some thirty for 16 values. With a limit of infinity, a slope
of 1 and an offset of 0 it is the plain one, so that there is one kernel. What is no number stays none.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import maximum, minimum, silu
from ..simd.functions import written_kernel
from ..simd.lanes import scaled, splat, vector_at


def _gate_row(b: ir.IRBuilder, weight_format: str, *arguments: ir.Value) -> None:
    x, k, out, scratch, *numbers = arguments
    limit, slope, offset = (splat(b, number) for number in numbers)
    ups = scaled(b, x, k, 4)

    def values(index: ir.Value) -> ir.Value:
        gate = minimum(b, limit, vector_at(b, x, index))
        up = maximum(b, b.fneg(limit), minimum(b, limit, vector_at(b, ups, index)))
        return b.fmul(silu(b, gate, slope), b.fadd(up, offset))

    write_row(b, weight_format, values, k, out, scratch)


# silu_mul_row(tag, x, k, out, scratch, limit, slope, offset): addresses, k as a multiple of 32, and float32
silu_mul_row = written_kernel("silu_mul_row", "iiiifff", _gate_row)
