"""Reads one row of the embedding table as float32.

The table is the checkpoint's mapped array, float32 or bfloat16; or, of a checkpoint with quantised embeddings, packed
codes (gemm/segments.py).
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import f32, i16, i32, int64, load, scaled, store
from .stored import emit_stored_row

FLOAT32_TABLE, BFLOAT16_TABLE, STORED_TABLE = range(3)


def _embedding_row(b: ir.IRBuilder, _: str, *arguments: ir.Value) -> None:
    table, token, size, kind, out, factor = arguments
    narrow, wide, codes, end = (b.append_basic_block(label) for label in ("bfloat16", "float32", "codes", "end"))
    switch = b.switch(kind, codes)
    switch.add_case(int64(FLOAT32_TABLE), wide)
    switch.add_case(int64(BFLOAT16_TABLE), narrow)
    b.position_at_end(codes)
    b.call(emit_stored_row(b.module), [table, token, size, out])

    def multiply(index: ir.Value, _: Values) -> Values:
        place = scaled(b, out, index, 4)
        store(b, b.fmul(load(b, place, f32), factor), place)
        return []

    loop(b, size, [], multiply)
    b.branch(end)
    for block, bytes_each in ((narrow, 2), (wide, 4)):
        b.position_at_end(block)
        row = scaled(b, table, b.mul(token, size), bytes_each)

        def body(index: ir.Value, _: Values, row: ir.Value = row, bytes_each: int = bytes_each) -> Values:
            bits = load(b, scaled(b, row, index, bytes_each), i16 if bytes_each == 2 else i32, bytes_each)
            if bytes_each == 2:
                bits = b.shl(b.zext(bits, i32), ir.Constant(i32, 16))
            store(b, b.fmul(b.bitcast(bits, f32), factor), scaled(b, out, index, 4))
            return []

        loop(b, size, [], body)
        b.branch(end)
    b.position_at_end(end)


# embedding_row(tag, table, token, size, kind of table, out, factor)
embedding_row = written_kernel("embedding_row", "iiiiif", _embedding_row)
