"""The GEMM micro-kernel as LLVM IR: a few rows times one panel of 64 channels.

Packed weights are panels of 64 channels: [N / 64][K / k][64][k] with k = 1 (float32), 2 (bfloat16) or 4 (int8) values
in 32 bits, so that every k step of a panel is 4 consecutive vectors, and a panel is one stream of memory. One row's
activations are contiguous in the same order.

Each output is the sum over k in ascending order in ONE accumulator, whatever the number of rows in the tile: that is
what makes a row's result independent of its batch. int8 sums are exact: they may wrap on the way, but the result fits
(quantise/reference.py has the bound). The high parts of a row's few wide quads are added after the main loop.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.layout import CORRECTION, ENTRY_BYTES, HEADER_BYTES, SCALE, WIDE_QUADS, WIDE_SHIFT
from ..simd import dot
from ..simd.functions import Values, either, loop, new_function, switch_on_rows
from ..simd.lanes import VECTOR_BYTES, VF, VI, at, constant, f32, i32, i64, int64, load, prefetch, scaled, splat, store
from ..simd.target import wide_registers
from .tile_int4 import emit_int4

PANEL = 64  # channels
PANEL_VECTORS = 4
UNROLL = 4  # k steps a turn; every K is padded to a multiple of 32
LINES_AHEAD = 4  # cache lines prefetched a turn, which is a quarter of a panel in one tile
ROW_VARIANTS = range(1, 7)  # 6 rows x 4 vectors + 4 weights + 1 fit in 32 registers; 7 x 4 spill (half the speed)
MOST_ROWS = ROW_VARIANTS[-1] if wide_registers() else 4  # 16 registers, each vector being two, hold no more

ARGUMENTS = "iiiiiiiiii"  # as emit() lists them, without the row count


def emit(module: ir.Module, weight_format: str) -> ir.Function:
    """f(rows, a, a stride, weights, k steps, out, out stride, scales of the channels, group shift, next, add).

    `next` is what to prefetch meanwhile, a quarter of a panel (4-bit weights: a whole one); `add` != 0 adds to the
    output (the residual). The group shift belongs to 4-bit weights, see tile_int4.py.
    """
    if weight_format == "int4":
        return emit_int4(module, ARGUMENTS)
    name = f"triolet_gemm_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    return switch_on_rows(module, name, ARGUMENTS, ROW_VARIANTS, lambda m, rows: _emit_rows(m, weight_format, rows))


def _strip_vectors(rows: int) -> int:
    """Vectors of the panel to work on at a time, so that the accumulators stay in registers."""
    if wide_registers():
        return PANEL_VECTORS
    return {1: 4, 2: 2}.get(rows, 1)


def _emit_rows(module: ir.Module, weight_format: str, rows: int) -> ir.Function:
    function, b = new_function(module, f"triolet_gemm_{weight_format}_{rows}", ARGUMENTS)
    a, a_stride, weights, steps, out, out_stride, channel_scale, _, following, add = function.args
    headers = [a]
    for _ in range(1, rows):
        headers.append(b.add(headers[-1], a_stride))
    row_starts = [at(b, header, HEADER_BYTES) for header in headers] if weight_format == "int8" else headers
    width = _strip_vectors(rows)
    for first in range(0, PANEL_VECTORS, width):

        def body(index: ir.Value, totals: Values, first: int = first) -> Values:
            totals = list(totals)
            w = scaled(b, weights, index, UNROLL * PANEL_VECTORS * VECTOR_BYTES)
            if first == 0:
                ahead = scaled(b, following, index, LINES_AHEAD * VECTOR_BYTES)
                for line in range(LINES_AHEAD):
                    prefetch(b, at(b, ahead, line * VECTOR_BYTES))
            xs = [scaled(b, start, index, UNROLL * 4) for start in row_starts]
            for turn in range(UNROLL):
                offset = (turn * PANEL_VECTORS + first) * VECTOR_BYTES
                vectors = [load(b, at(b, w, offset + v * VECTOR_BYTES), VI, 64) for v in range(width)]
                for row in range(rows):
                    x = load(b, at(b, xs[row], turn * 4), i32, 4)
                    for v in range(width):
                        slot = row * width + v
                        totals[slot] = dot.step(b, weight_format, totals[slot], vectors[v], x)
            return totals

        totals = loop(b, b.sdiv(steps, int64(UNROLL)), [dot.zero(weight_format)] * (rows * width), body)
        if weight_format == "int8":
            strip = at(b, weights, first * VECTOR_BYTES)
            for row, header in enumerate(headers):
                entries = b.add(row_starts[row], b.mul(steps, int64(4)))
                slots = slice(row * width, (row + 1) * width)
                totals[slots] = _add_wide_quads(b, totals[slots], header, entries, strip)
            totals = _dequantise(b, totals, rows, width, headers, at(b, channel_scale, first * VECTOR_BYTES))
        _write(b, totals, rows, width, at(b, out, first * VECTOR_BYTES), out_stride, add)
    b.ret_void()
    return function


def _add_wide_quads(b: ir.IRBuilder, totals: Values, header: ir.Value, entries: ir.Value, weights: ir.Value) -> Values:
    """A row's totals plus 64 times the products of the high parts of its wide quads; most rows have none."""

    def body(index: ir.Value, totals: Values) -> Values:
        entry = scaled(b, entries, index, ENTRY_BYTES)
        w = scaled(b, weights, b.sext(load(b, entry, i32), i64), PANEL_VECTORS * VECTOR_BYTES)
        x = load(b, at(b, entry, 4), i32)
        return [
            dot.step(b, "int8", total, load(b, at(b, w, v * VECTOR_BYTES), VI, 64), x)
            for v, total in enumerate(totals)
        ]

    count = b.sext(load(b, at(b, header, WIDE_QUADS), i32), i64)
    before, some, end = b.block, b.append_basic_block("wide"), b.append_basic_block("whole")
    b.cbranch(b.icmp_signed("<", int64(0), count), some, end)
    b.position_at_end(some)
    highs = loop(b, count, [dot.zero("int8")] * len(totals), body)
    wider = [b.add(total, b.shl(high, constant(i32, WIDE_SHIFT))) for total, high in zip(totals, highs, strict=True)]
    after = b.block
    b.branch(end)
    b.position_at_end(end)
    return [either(b, total, before, more, after) for total, more in zip(totals, wider, strict=True)]


def _dequantise(
    b: ir.IRBuilder, totals: Values, rows: int, width: int, headers: Values, scales: ir.Value
) -> Values:
    """(sum of unsigned products - the row's correction, 128 * sum of x) * channel scale * row scale."""
    channels = [load(b, at(b, scales, v * VECTOR_BYTES), VF) for v in range(width)]
    values = []
    for row in range(rows):
        scale = splat(b, load(b, at(b, headers[row], SCALE), f32))
        shift = splat(b, load(b, at(b, headers[row], CORRECTION), i32))
        for v in range(width):
            exact = b.sitofp(b.sub(totals[row * width + v], shift), VF)
            values.append(b.fmul(b.fmul(exact, channels[v]), scale))
    return values


def _write(
    b: ir.IRBuilder, values: Values, rows: int, width: int, out: ir.Value, out_stride: ir.Value, add: ir.Value
) -> None:
    plain, plus, end = (b.append_basic_block(name) for name in ("plain", "plus", "written"))
    b.cbranch(b.icmp_signed("==", add, int64(0)), plain, plus)
    for block in (plain, plus):
        b.position_at_end(block)
        for row in range(rows):
            target = scaled(b, out, out_stride, row)
            for v in range(width):
                address, value = at(b, target, v * VECTOR_BYTES), values[row * width + v]
                store(b, b.fadd(value, load(b, address, VF)) if block is plus else value, address)
        b.branch(end)
    b.position_at_end(end)
