"""The GEMM micro-kernel as LLVM IR: up to 16 rows times one panel of 16 channels.

Packed weights are panels of 16 channels: [N / 16][K / k][16][k] with k = 1 (float32), 2 (bfloat16) or 4 (int8) values
in 32 bits. So every k step of a panel is one vector, and a panel is contiguous in memory. A row's activations are
contiguous in the same order.

So each weight is loaded once for 16 rows, and with more rows a panel stays in the L1 cache. Wider panels with fewer
rows (4 x 4 vectors) need fewer broadcasts but read every panel four times from L2: 7 to 10 % slower at 16 rows, about
25 % at 8 and 12. With more than a few rows the CPU's own prefetching cannot keep up, so their tile prefetches the next
panel.

Each output is the sum over k in ascending order in ONE accumulator, whatever the number of rows in the tile. This makes
a row's result independent of its batch. int8 sums are exact: intermediate sums may wrap, but the result fits (for the
bound see quantise/reference.py). They start from the high parts of a row's few wide quads.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.layout import CORRECTION, ENTRY_BYTES, HEADER_BYTES, SCALE, WIDE_QUADS, WIDE_SHIFT
from ..simd import dot
from ..simd.functions import Values, either, loop, new_function, switch_on_rows
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    constant,
    f32,
    i32,
    i64,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    store,
)
from ..simd.neon_matrix import STEPS, apart, matrix_steps, multiplies_matrices, paired
from ..simd.target import wide_registers

PANEL = LANES  # channels
MOST_ROWS = 16 if wide_registers() else 4  # 16 registers hold no more, as each vector takes two
MANY_ROWS = 10  # from here on the tile may be one of many, of a prompt
FEW_ROWS = 4  # up to here panels are read so fast that the CPU's own prefetching is better

ARGUMENTS = "iiiiiiiiii"  # as emit() lists them, without the row count


def emit_tile(module: ir.Module, weight_format: str) -> ir.Function:
    """f(rows, a, a stride, weights, k steps, out, out stride, scales of the channels, group shift, next, add).

    `next` is a panel to prefetch, or `a` for none; `add` != 0 adds to the output (the residual). The group shift is for
    4-bit weights, see tile_int4.py.
    """
    name = f"triolet_gemm_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    largest = range(1, MOST_ROWS + 1)
    return switch_on_rows(module, name, ARGUMENTS, largest, lambda m, rows: _emit_rows(m, weight_format, rows[-1]))


def _emit_rows(module: ir.Module, weight_format: str, rows: int) -> ir.Function:
    function, b = new_function(module, f"triolet_gemm_{weight_format}_{rows}", ARGUMENTS)
    a, a_stride, weights, steps, out, out_stride, channel_scales, _, following, add = function.args
    headers = [a]
    for _ in range(1, rows):
        headers.append(b.add(headers[-1], a_stride))
    int8, broadcast = weight_format == "int8", dot.broadcast_format(weight_format)
    broadcasts = dot.K_PER_STEP[weight_format] // dot.K_PER_STEP[broadcast]  # of a row, for a vector of weights
    row_starts = [at(b, header, HEADER_BYTES) for header in headers] if int8 else headers
    by_matrices = rows > 1 and multiplies_matrices(weight_format)
    at_once = STEPS if by_matrices else 1
    prefetching = rows > FEW_ROWS or not wide_registers()
    unroll = 2 if rows > FEW_ROWS else 8  # every K is padded to a multiple of 32: at least 8 steps
    stride = prefetch_stride(b, following, a, unroll * VECTOR_BYTES)

    def body(index: ir.Value, totals: Values) -> Values:
        totals = list(totals)
        w = scaled(b, weights, index, unroll * VECTOR_BYTES)
        ahead = b.add(following, b.mul(index, stride))
        xs = [scaled(b, start, index, unroll * broadcasts * 4) for start in row_starts]
        for turn in range(0, unroll, at_once):
            vectors = []
            for step in range(turn, turn + at_once):
                if prefetching:
                    prefetch(b, at(b, ahead, step * VECTOR_BYTES))
                vectors.append(load(b, at(b, w, step * VECTOR_BYTES), VI, 64))
            if by_matrices:
                own = [[load(b, at(b, x, turn * 4), i64)] for x in xs]
                totals = matrix_steps(b, weight_format, totals, paired(b, vectors), own)
                continue
            for part in range(broadcasts):
                own = vectors[0] if broadcasts == 1 else dot.half_of(b, vectors[0], part)
                for row in range(rows):
                    x = load(b, at(b, xs[row], (turn * broadcasts + part) * 4), i32, 4)
                    totals[row] = _step(b, broadcast, totals[row], own, x)
        return totals

    totals = [dot.zero(weight_format)] * rows
    if int8:
        prefetch(b, channel_scales)  # otherwise the tile's end, and so the next tile, waits for this line from memory
        totals = wide_sums(b, headers, a_stride, weights, steps)
    totals = paired(b, totals) if by_matrices else totals
    totals = loop(b, b.sdiv(steps, int64(unroll)), totals, body)
    totals = apart(b, totals, rows) if by_matrices else totals
    if int8:
        totals = dequantise(b, totals, headers, load(b, channel_scales, VF))
    write_rows(b, totals, out, out_stride, add)
    b.ret_void()
    return function


def _step(b: ir.IRBuilder, weight_format: str, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    if weight_format == "int8" and not dot.codes_stay_unsigned():
        return dot.centred_step(b, total, weights, x)
    return dot.step(b, weight_format, total, weights, x)


def wide_sums(b: ir.IRBuilder, headers: Values, a_stride: ir.Value, weights: ir.Value, steps: ir.Value) -> Values:
    """Per row: 64 times the products of the high parts of its wide quads. Most tiles have none."""
    counts = [load(b, at(b, header, WIDE_QUADS), i32) for header in headers]
    some = counts[0]
    for count in counts[1:]:
        some = b.or_(some, count)
    with b.goto_entry_block():  # in a loop it would grow the stack
        room = b.alloca(VI, size=ir.Constant(i32, len(headers)))
    sums = b.ptrtoint(room, i64)
    before, wide, end = b.block, b.append_basic_block("wide"), b.append_basic_block("begin")
    b.cbranch(b.icmp_signed("!=", some, ir.Constant(i32, 0)), wide, end)
    b.position_at_end(wide)
    b.call(_emit_wide(b.module), [int64(len(headers)), headers[0], a_stride, weights, steps, sums])
    found = [load(b, at(b, sums, row * VECTOR_BYTES), VI, 64) for row in range(len(headers))]
    b.branch(end)
    b.position_at_end(end)
    return [either(b, constant(i32, 0), before, value, wide) for value in found]


def _emit_wide(module: ir.Module) -> ir.Function:
    """f(rows, a, a stride, weights, k steps, sums): computes wide_sums, one vector of sums per row."""
    name = "triolet_gemm_wide"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiiiii")
    rows, a, a_stride, weights, steps, sums = function.args

    def of_row(row: ir.Value, _: Values) -> Values:
        header = b.add(a, b.mul(row, a_stride))
        entries = b.add(at(b, header, HEADER_BYTES), b.mul(steps, int64(4)))

        def add_quad(index: ir.Value, totals: Values) -> Values:
            entry = scaled(b, entries, index, ENTRY_BYTES)
            w = load(b, scaled(b, weights, b.sext(load(b, entry, i32), i64), VECTOR_BYTES), VI, 64)
            return [_step(b, "int8", totals[0], w, load(b, at(b, entry, 4), i32))]

        count = b.sext(load(b, at(b, header, WIDE_QUADS), i32), i64)
        total = loop(b, count, [dot.zero("int8")], add_quad)[0]
        store(b, b.shl(total, constant(i32, WIDE_SHIFT)), scaled(b, sums, row, VECTOR_BYTES), 64)
        return []

    loop(b, rows, [], of_row)
    b.ret_void()
    return function


def dequantise(b: ir.IRBuilder, totals: Values, headers: Values, channel_scales: ir.Value) -> Values:
    """(sum of products - the row's correction, 128 * sum of x, if they are unsigned) * channel scale * row scale."""
    values = []
    for total, header in zip(totals, headers, strict=True):
        if dot.codes_stay_unsigned():
            total = b.sub(total, splat(b, load(b, at(b, header, CORRECTION), i32)))
        exact = b.sitofp(total, VF)
        values.append(b.fmul(b.fmul(exact, channel_scales), splat(b, load(b, at(b, header, SCALE), f32))))
    return values


def prefetch_output(b: ir.IRBuilder, out: ir.Value, out_stride: ir.Value, rows: int) -> None:
    """In a long prompt the output's lines have left the caches since the panel before: writes would wait for memory.

    Products of 512 rows on a Zen 4, 1,024 x 6,144: Q8_0 8 % faster, Q4_K 5 %, int4 3 %. Of one tile: within 2 %.
    """
    if rows >= MANY_ROWS:
        for row in range(rows):
            prefetch(b, b.add(out, b.mul(out_stride, int64(row))))


def write_rows(
    b: ir.IRBuilder,
    values: Values,
    out: ir.Value,
    out_stride: ir.Value,
    add: ir.Value,
    optional: tuple[int, ir.Value] | None = None,
) -> None:
    """Store a row each, or add to what is there. `optional` (n, rows): values from n on only below `rows`."""
    plain, plus, end = (b.append_basic_block(name) for name in ("plain", "plus", "written"))
    b.cbranch(b.icmp_signed("==", add, int64(0)), plain, plus)
    for block in (plain, plus):
        b.position_at_end(block)
        target = out
        for row, value in enumerate(values):
            if row:
                target = b.add(target, out_stride)
            if optional is not None and row >= optional[0]:
                present = b.append_basic_block("present")
                b.cbranch(b.icmp_signed("<", int64(row), optional[1]), present, end)
                b.position_at_end(present)
            store(b, b.fadd(value, load(b, target, VF)) if block is plus else value, target)
        b.branch(end)
    b.position_at_end(end)


def prefetch_stride(b: ir.IRBuilder, following: ir.Value, a: ir.Value, turn_bytes: int) -> ir.Value:
    """How far the prefetch address moves per iteration: 0 if there is nothing to prefetch.

    Then it prefetches the first row's lines, which are in the L1 cache. Any others would displace misses that matter:
    a fifth of a single row's speed.
    """
    return b.select(b.icmp_signed("==", following, a), int64(0), int64(turn_bytes))
