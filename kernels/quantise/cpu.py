"""Writes a float32 row as GEMM activations (the attention output, before the output projection)."""

from __future__ import annotations

from llvmlite import ir

from ..simd.functions import kernel, new_function
from ..simd.lanes import LANES, VF, load, scaled
from .row import write_row


def _emit(module: ir.Module, weight_format: str) -> ir.Function:
    name = f"triolet_plain_row_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiii")
    x, k, out, scratch = function.args
    write_row(b, weight_format, lambda i: load(b, scaled(b, x, i, 4 * LANES), VF), k, out, scratch)
    b.ret_void()
    return function


# plain_row(tag, x, k, out, scratch): addresses, and k as a multiple of 32
plain_row = kernel("iiii", _emit)
