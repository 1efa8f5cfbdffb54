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

from ..quantise.layout import GROUP_BYTES, GROUP_OFFSET, GROUP_STARTS
from ..simd import dot
from ..simd.arithmetic import fma
from ..simd.functions import Values, loop, new_function, switch_on_rows
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    constant,
    f32,
    i8,
    i16,
    i32,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    vector,
)
from ..simd.neon_matrix import paired
from ..simd.target import has, wide_registers
from .tile import ARGUMENTS, prefetch_output, prefetch_stride, write_rows

PANEL_GROUP_BYTES = 4 * VECTOR_BYTES  # of 32 inputs
SCALE_GROUP_BYTES = 2 * LANES
ROW_VARIANTS = (1, 2, 3, 4, 6, 8, 10, 12) if wide_registers() else (1, 2, 4)  # other counts use the next one
INT4_MOST_ROWS = ROW_VARIANTS[-1]


def emit_tile_int4(module: ir.Module) -> ir.Function:
    """The function of tile.py's emit_tile."""
    name = "triolet_gemm_int4"
    if name in module.globals:
        return module.globals[name]
    return switch_on_rows(module, name, ARGUMENTS, ROW_VARIANTS, _emit_rows)


def _emit_rows(module: ir.Module, counts: range) -> ir.Function:
    """Computes the most rows and writes only existing ones. Rows beyond are read: that is the caller's memory."""
    most = counts[-1]
    function, b = new_function(module, f"triolet_gemm_int4_{most}", "i" + ARGUMENTS)
    rows, a, a_stride, weights, steps, out, out_stride, scales, shift, following, add = function.args
    stride = prefetch_stride(b, following, a, PANEL_GROUP_BYTES)

    def body(group: ir.Value, totals: Values) -> Values:
        w = scaled(b, weights, group, PANEL_GROUP_BYTES)
        ahead = b.add(following, b.mul(group, stride))
        codes = unpacked_group(b, w, ahead, in_pairs=dot.codes_in_pairs(most, 4))
        scale = group_scale(b, scales, group, shift)
        x = scaled(b, a, group, GROUP_BYTES)
        groups = [x]
        for _ in range(1, most):
            groups.append(b.add(groups[-1], a_stride))
        starts = [splat(b, load(b, at(b, own, GROUP_STARTS[4]), i32)) for own in groups]
        quads = [[load(b, at(b, own, quad * 4), i32) for quad in range(8)] for own in groups]
        results = []
        sums = dot.code_steps(b, starts, codes, quads, 4)
        for own, shifted, total in zip(groups, sums, totals, strict=True):
            results.append(add_group(b, own, shifted, scale, total))
        return results

    prefetch_output(b, out, out_stride, most)
    # a step is 4 packed bytes of a channel, 8 inputs
    totals = loop(b, b.sdiv(steps, int64(4)), [constant(f32, 0.0)] * most, body)
    write_rows(b, totals, out, out_stride, add, (counts[0], rows))
    b.ret_void()
    return function


def unpacked_group(b: ir.IRBuilder, w: ir.Value, ahead: ir.Value, *, in_pairs: bool = False) -> Values:
    """The eight quads of codes of a group at `w`, `paired` if asked; prefetches the one at `ahead`."""
    low, high, at_once = [], [], 2 if in_pairs else 1
    for first in range(0, 4, at_once):
        vectors = []
        for v in range(first, first + at_once):
            prefetch(b, at(b, ahead, v * VECTOR_BYTES))
            vectors.append(load(b, at(b, w, v * VECTOR_BYTES), VI, 64))
        for packed in paired(b, vectors) if in_pairs else vectors:
            low.append(b.and_(packed, constant(i32, 0x0F0F0F0F)))
            high.append(upper_nibbles(b, packed))
    return low + high


def upper_nibbles(b: ir.IRBuilder, packed: ir.Value) -> ir.Value:
    """The upper four bits of each byte, as bytes."""
    if has("neon"):  # which shifts bytes
        return b.bitcast(b.lshr(b.bitcast(packed, vector(i8, VECTOR_BYTES)), constant(i8, 4, VECTOR_BYTES)), VI)
    return b.and_(b.lshr(packed, constant(i32, 4)), constant(i32, 0x0F0F0F0F))


def group_scale(b: ir.IRBuilder, scales: ir.Value, group: ir.Value, shift: ir.Value) -> ir.Value:
    halves = load(b, scaled(b, scales, b.lshr(group, shift), SCALE_GROUP_BYTES), vector(i16, LANES), 32)
    return b.bitcast(b.shl(b.zext(halves, VI), constant(i32, 16)), VF)


def add_group(b: ir.IRBuilder, x: ir.Value, shifted: ir.Value, scale: ir.Value, total: ir.Value) -> ir.Value:
    """total + scale * what `shifted`, the sum from the start value of the group at `x` on, stands for."""
    exact = b.fsub(b.bitcast(shifted, VF), splat(b, load(b, at(b, x, GROUP_OFFSET), f32)))
    return fma(b, exact, scale, total)
