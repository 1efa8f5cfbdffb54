"""silu(gate) * up of one row, written as GEMM activations. The gates are x[:k], the ups x[k:2k]."""

from __future__ import annotations

from llvmlite import ir

from ..quantise.row import write_row
from ..simd.arithmetic import silu
from ..simd.functions import kernel, new_function
from ..simd.lanes import LANES, VF, load, scaled


def _emit(module: ir.Module, weight_format: str) -> ir.Function:
    name = f"triolet_silu_mul_row_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiii")
    x, k, out, scratch = function.args
    ups = scaled(b, x, k, 4)

    def values(index: ir.Value) -> ir.Value:
        gate = load(b, scaled(b, x, index, 4 * LANES), VF)
        return b.fmul(silu(b, gate), load(b, scaled(b, ups, index, 4 * LANES), VF))

    write_row(b, weight_format, values, k, out, scratch)
    b.ret_void()
    return function


# silu_mul_row(tag, x, k, out, scratch): addresses, and k as a multiple of 32
silu_mul_row = kernel("iiii", _emit)
