"""Writes a float32 row as GEMM activations (the attention output, before the output projection)."""

from __future__ import annotations

from llvmlite import ir

from ..simd.functions import written_kernel
from ..simd.lanes import LANES, VF, load, scaled
from .row import write_row


def _plain_row(b: ir.IRBuilder, weight_format: str, x: ir.Value, k: ir.Value, out: ir.Value, scratch: ir.Value) -> None:
    write_row(b, weight_format, lambda i: load(b, scaled(b, x, i, 4 * LANES), VF), k, out, scratch)


# plain_row(tag, x, k, out, scratch): addresses, and k as a multiple of 32
plain_row = written_kernel("plain_row", "iiii", _plain_row)
