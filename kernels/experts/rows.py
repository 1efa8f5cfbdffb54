"""Row operations of the grouped GEMM at raw addresses: gather a row, add a weighted vector of 16 channels."""

from __future__ import annotations

from llvmlite import ir

from ..simd.arithmetic import fma
from ..simd.functions import inline, written_kernel
from ..simd.lanes import VF, declare, i8, i64, load, splat, store, void


def _copy(b: ir.IRBuilder, target: ir.Value, source: ir.Value, size: ir.Value) -> None:
    pointer = ir.PointerType(i8)
    function = declare(b.module, "llvm.memcpy.p0.p0.i64", void, [pointer, pointer, i64, ir.IntType(1)])
    b.call(function, [b.inttoptr(target, pointer), b.inttoptr(source, pointer), size, ir.Constant(ir.IntType(1), 0)])


def _add_weighted(b: ir.IRBuilder, _: str, values: ir.Value, bias: ir.Value, weight: ir.Value, out: ir.Value) -> None:
    total = b.fadd(load(b, values, VF), load(b, bias, VF))
    store(b, fma(b, total, splat(b, weight), load(b, out, VF)), out)


copy_bytes = inline(3, _copy, result=False)  # (target, source, size); they do not overlap
# add_weighted(tag, values, bias, weight, out): out += (values + bias) * weight, on 16 float32
add_weighted = written_kernel("add_weighted", "iifi", _add_weighted)
