"""Reads one channel of packed codes as float32: a row of an embedding table that shares the panels of the LM head.

A row of 2,048 inputs is some 500 cache lines, of which a few bytes each are used: about 10 us, beside the milliseconds
of a step; and a tied embedding needs no second copy.
"""

from __future__ import annotations

from llvmlite import ir

from ..gemm.segments import (
    ADD,
    BITS,
    CODES,
    FIRST_PANEL,
    IS_FP4,
    PANELS,
    SEGMENT_BYTES,
    SEGMENTS_START,
)
from ..gemm.tile_fp4 import number_of
from ..gemm.tile_stored import GROUP_VECTORS, WIDTHS, GroupScales, field_of
from ..simd.formats import GROUP
from ..simd.functions import Values, loop, new_function
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    at,
    constant,
    f32,
    float32,
    i8,
    i32,
    int64,
    load,
    scaled,
    splat,
    store,
    vector,
)

QUAD = 4
COUNTED_FROM = {4: 0, 6: 0, 8: 128}  # codes of so many bits: as the files' own libraries round, see codes.py


def emit_stored_row(module: ir.Module) -> ir.Function:
    """f(table, channel, size, out): writes `size` values, and zeros up to a whole group."""
    name = "triolet_stored_row"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiii")
    table, channel, size, out = function.args
    groups = b.sdiv(b.add(size, int64(GROUP - 1)), int64(GROUP))

    def of_segment(number: ir.Value, _: Values) -> Values:
        segment = scaled(b, at(b, table, SEGMENTS_START), number, SEGMENT_BYTES)
        panel = b.sub(b.sdiv(channel, int64(LANES)), field_of(b, segment, FIRST_PANEL))
        inside = b.and_(b.icmp_signed(">=", panel, int64(0)), b.icmp_signed("<", panel, field_of(b, segment, PANELS)))
        for bits in WIDTHS:
            with b.if_then(b.and_(inside, b.icmp_signed("==", field_of(b, segment, BITS), int64(bits)))):
                _write_channel(b, bits, segment, panel, b.srem(channel, int64(LANES)), groups, out)
        return []

    loop(b, load(b, table, int64(0).type, 8), [], of_segment)

    def clear(index: ir.Value, _: Values) -> Values:
        store(b, float32(0.0), scaled(b, out, b.add(size, index), 4))
        return []

    loop(b, b.sub(b.mul(groups, int64(GROUP)), size), [], clear)
    b.ret_void()
    return function


def _write_channel(
    b: ir.IRBuilder, bits: int, segment: ir.Value, panel: ir.Value, lane: ir.Value, groups: ir.Value, out: ir.Value
) -> None:
    scales = GroupScales(b, COUNTED_FROM[bits], segment, panel, groups)
    group_bytes = GROUP_VECTORS[bits] * VECTOR_BYTES
    codes = b.add(b.add(segment, field_of(b, segment, CODES)), b.mul(panel, b.mul(groups, int64(group_bytes))))
    own, adds = b.add(codes, b.mul(lane, int64(4))), b.icmp_signed("!=", field_of(b, segment, ADD), int64(0))
    place, is_fp4 = b.trunc(lane, i32), b.icmp_signed("!=", field_of(b, segment, IS_FP4), int64(0))
    four_floats = vector(f32, QUAD)

    def of_group(group: ir.Value, _: Values) -> Values:
        words = [
            load(b, at(b, scaled(b, own, group, group_bytes), v * VECTOR_BYTES), i32)
            for v in range(GROUP_VECTORS[bits])
        ]
        parts = scales.of_group(group, halves=True)
        minima = scales.minima_of_group(group, parts)
        for quad in range(GROUP // QUAD):
            part = quad // 4
            scale, minimum = (splat(b, b.extract_element(value, place), QUAD) for value in (parts[part], minima[part]))
            unsigned = b.zext(b.bitcast(_quad(b, bits, words, quad), vector(i8, QUAD)), vector(i32, QUAD))
            if bits == 4:
                unsigned = b.select(is_fp4, number_of(b, unsigned), unsigned)
            code = b.sitofp(b.sub(unsigned, constant(i32, COUNTED_FROM[bits], QUAD)), four_floats)
            value = b.fadd(b.fmul(code, scale), minimum)
            target = at(b, scaled(b, out, group, 4 * GROUP), 4 * QUAD * quad)
            before = b.select(adds, load(b, target, four_floats), constant(f32, 0.0, QUAD))
            store(b, b.fadd(value, before), target)
        return []

    loop(b, groups, [], of_group)


def _quad(b: ir.IRBuilder, bits: int, words: list[ir.Value], quad: int) -> ir.Value:
    """Four codes as bytes: tile_stored.py."""
    if bits == 8:
        return words[quad]
    low = b.and_(b.lshr(words[quad % 4], ir.Constant(i32, 4 * (quad // 4))), ir.Constant(i32, 0x0F0F0F0F))
    if bits == 4:
        return low
    upper = b.lshr(words[4 + quad // 4], ir.Constant(i32, 2 * (quad % 4)))
    return b.or_(low, b.shl(b.and_(upper, ir.Constant(i32, 0x03030303)), ir.Constant(i32, 4)))
