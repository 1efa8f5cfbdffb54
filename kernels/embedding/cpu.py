"""Reads one row of the embedding table as float32. The table is the checkpoint's mapped array, float32 or bfloat16."""

from __future__ import annotations

from llvmlite import ir

from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import f32, i16, i32, int64, load, scaled, store


def _embedding_row(b: ir.IRBuilder, _: str, *arguments: ir.Value) -> None:
    table, token, size, is_bfloat16, out = arguments
    narrow, wide, end = (b.append_basic_block(label) for label in ("bfloat16", "float32", "end"))
    b.cbranch(b.icmp_signed("!=", is_bfloat16, int64(0)), narrow, wide)
    for block, bytes_each in ((narrow, 2), (wide, 4)):
        b.position_at_end(block)
        row = scaled(b, table, b.mul(token, size), bytes_each)

        def body(index: ir.Value, _: Values, row: ir.Value = row, bytes_each: int = bytes_each) -> Values:
            bits = load(b, scaled(b, row, index, bytes_each), i16 if bytes_each == 2 else i32, bytes_each)
            if bytes_each == 2:
                bits = b.shl(b.zext(bits, i32), ir.Constant(i32, 16))
            store(b, b.bitcast(bits, f32), scaled(b, out, index, 4))
            return []

        loop(b, size, [], body)
        b.branch(end)
    b.position_at_end(end)


# embedding_row(tag, table, token, size, table is bfloat16?, out)
embedding_row = written_kernel("embedding_row", "iiiii", _embedding_row)
