"""silu(gate) * up of one row, written as GEMM activations. The gates are x[:k], the ups x[k:2k]."""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import silu
from ..simd.functions import written_kernel
from ..simd.lanes import scaled, vector_at


def _gate_row(b: ir.IRBuilder, weight_format: str, x: ir.Value, k: ir.Value, out: ir.Value, scratch: ir.Value) -> None:
    ups = scaled(b, x, k, 4)

    def values(index: ir.Value) -> ir.Value:
        gate = vector_at(b, x, index)
        return b.fmul(silu(b, gate), vector_at(b, ups, index))

    write_row(b, weight_format, values, k, out, scratch)


# silu_mul_row(tag, x, k, out, scratch): addresses, and k as a multiple of 32
silu_mul_row = written_kernel("silu_mul_row", "iiii", _gate_row)
