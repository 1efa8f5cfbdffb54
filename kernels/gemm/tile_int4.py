"""The GEMM micro-kernel for 4-bit weights as LLVM IR: up to 12 rows times a panel of 16 channels.

A panel is [K / 32][4 vectors]: lane = channel; byte i of vector j has w[4 j + i] in its low half and w[16 + 4 j + i] in
its high half, both plus 8. Masks and shifts unpack a group of 32 inputs into 8 vectors, once for all rows of the tile.
These are the unsigned operand of the same products as int8's. The start value of a row's sum undoes the 8, and lets one
subtraction convert the sum to float32 (quantise/layout.py). The channels' bfloat16 scales are [groups][16], one for
32 << group shift inputs.

Each group's sum is exact; the groups are added in ascending order in float32, whatever the number of rows.
"""

from __future__ import annotations

from llvmlite import ir

from ..quantise.layout import GROUP_BYTES, GROUP_OFFSET, GROUP_START
from ..simd import dot
from ..simd.arithmetic import fma
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    constant,
    f32,
    i16,
    i32,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    store,
    vector,
)
from ..simd.target import wide_registers

PANEL_GROUP_BYTES = 4 * VECTOR_BYTES  # of 32 inputs
SCALE_GROUP_BYTES = 2 * LANES
ROW_VARIANTS = (1, 2, 3, 4, 6, 8, 10, 12) if wide_registers() else (1, 2, 4)  # other counts use the next one
INT4_MOST_ROWS = ROW_VARIANTS[-1]


def emit_int4(module: ir.Module, arguments: str) -> ir.Function:
    """The function of tile.py's emit()."""
    name = "triolet_gemm_int4"
    if name in module.globals:
        return module.globals[name]
    variants = []
    for index, most in enumerate(ROW_VARIANTS):
        least = ROW_VARIANTS[index - 1] + 1 if index else 1
        variants.append((range(least, most + 1), _emit_rows(module, least, most, "i" + arguments)))
    function, b = new_function(module, name, "i" + arguments)
    end = function.append_basic_block("end")
    switch = b.switch(function.args[0], end)
    for counts, variant in variants:
        block = function.append_basic_block(f"rows{counts[-1]}")
        for count in counts:
            switch.add_case(int64(count), block)
        b.position_at_end(block)
        b.call(variant, function.args)
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return function


def prefetch_stride(b: ir.IRBuilder, following: ir.Value, a: ir.Value, turn_bytes: int) -> ir.Value:
    """How far the prefetch address moves per iteration: 0 if there is nothing to prefetch.

    Then it prefetches the first row's lines, which are in the L1 cache. Any others would displace misses that matter:
    a fifth of a single row's speed.
    """
    return b.select(b.icmp_signed("==", following, a), int64(0), int64(turn_bytes))


def _emit_rows(module: ir.Module, least: int, most: int, arguments: str) -> ir.Function:
    """Computes `most` rows and writes only existing ones. Rows beyond are read: that is the caller's memory."""
    function, b = new_function(module, f"triolet_gemm_int4_{most}", arguments)
    rows, a, a_stride, weights, steps, out, out_stride, scales, shift, following, add = function.args
    stride = prefetch_stride(b, following, a, PANEL_GROUP_BYTES)
    mask, four = constant(i32, 0x0F0F0F0F), constant(i32, 4)

    def body(group: ir.Value, totals: Values) -> Values:
        w = scaled(b, weights, group, PANEL_GROUP_BYTES)
        ahead = b.add(following, b.mul(group, stride))
        low, high = [], []
        for v in range(4):
            prefetch(b, at(b, ahead, v * VECTOR_BYTES))
            packed = load(b, at(b, w, v * VECTOR_BYTES), VI, 64)
            low.append(b.and_(packed, mask))
            high.append(b.and_(b.lshr(packed, four), mask))
        halves = load(b, scaled(b, scales, b.lshr(group, shift), SCALE_GROUP_BYTES), vector(i16, LANES), 32)
        scale = b.bitcast(b.shl(b.zext(halves, VI), constant(i32, 16)), VF)
        x = scaled(b, a, group, GROUP_BYTES)
        results = []
        for row in range(most):
            if row:
                x = b.add(x, a_stride)
            start = splat(b, load(b, at(b, x, GROUP_START), i32))
            quads = [load(b, at(b, x, quad * 4), i32) for quad in range(8)]
            shifted = b.bitcast(dot.nibble_steps(b, start, low + high, quads), VF)
            exact = b.fsub(shifted, splat(b, load(b, at(b, x, GROUP_OFFSET), f32)))
            results.append(fma(b, exact, scale, totals[row]))
        return results

    # a step is 4 packed bytes of a channel, 8 inputs
    totals = loop(b, b.sdiv(steps, int64(4)), [constant(f32, 0.0)] * most, body)
    plain, plus, end = (b.append_basic_block(name) for name in ("plain", "plus", "written"))
    b.cbranch(b.icmp_signed("==", add, int64(0)), plain, plus)
    for block in (plain, plus):
        b.position_at_end(block)
        target = out
        for row in range(most):
            if row:
                target = b.add(target, out_stride)
            if row >= least:
                present = b.append_basic_block("present")
                b.cbranch(b.icmp_signed("<", int64(row), rows), present, end)
                b.position_at_end(present)
            value = totals[row]
            store(b, b.fadd(value, load(b, target, VF)) if block is plus else value, target)
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return function
