"""The GEMM micro-kernel for codes as checkpoints store them, as LLVM IR: up to 12 rows times a panel of 16 channels.

Codes of a group of 32 inputs (lane = channel; "quad" q: inputs 4 q to 4 q + 3, a byte each):
    4 bits  4 vectors, as in tile_int4.py: quad j in the low halves of vector j's bytes, quad 4 + j in the high halves
    6 bits  the same 4 vectors of low halves, then 2 vectors: bits 2 i of vector h are the upper two of quad 4 h + i
    8 bits  8 vectors, one for each quad

A group's sum is scale * (codes . x) - minimum * (sum of x), with codes, zeros and minima counted from the centre of
the codes' range, and minimum = scale * zero for layouts without minima: nothing, where the zero is the centre. Then the
second product is left out. The activations (quantise/layout.py) have the sums of x, and start values that take the
centre from the codes. Codes . x is exact; the products are added in float32, the groups in ascending order, whatever
the number of rows. 6-bit codes may have a scale for each half of the group.

The kinds of scales and minima are numbers in the segment: branches on them, which the CPU predicts, cost a few cycles
in a group and save a compiled function for each of a dozen layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from ..quantise.layout import CENTRES, GROUP_BYTES, GROUP_OFFSET, GROUP_STARTS, GROUP_SUM, GROUP_SUMS
from ..simd import dot
from ..simd.arithmetic import fma, half_to_float
from ..simd.functions import Values, either, loop, new_function, switch_on_rows
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
    i64,
    int64,
    load,
    prefetch,
    scaled,
    splat,
    vector,
)
from ..simd.neon_matrix import paired
from .segments import (
    BITS,
    IS_FP4,
    MINIMA,
    MINIMUM_KIND,
    MINIMUM_STRIDE,
    SCALE_KIND,
    SCALE_STRIDE,
    SCALES,
    SHIFT,
    SPLIT,
    UPPER_MINIMA,
    UPPER_SCALES,
    UPPER_SHIFT,
    UPPER_STRIDE,
    ZERO,
)
from .tile import ARGUMENTS, MANY_ROWS, prefetch_output, prefetch_stride, write_rows
from .tile_fp4 import codes_of, looked_up_here
from .tile_int4 import ROW_VARIANTS, upper_nibbles

AHEAD = 8192  # bytes that a single row prefetches of its own panels: too little comes by itself
WIDTHS = (4, 6, 8)
GROUP_VECTORS = {4: 4, 6: 6, 8: 8}


def emit_tile_stored(module: ir.Module) -> ir.Function:
    """As tile.py's emit_tile, but: steps are groups of 32 inputs, `scales` is the segment, `shift` the panel in it."""
    name = "triolet_gemm_stored"
    if name in module.globals:
        return module.globals[name]
    widths = {
        bits: switch_on_rows(module, f"{name}_{bits}", ARGUMENTS, ROW_VARIANTS, partial(_emit_rows, bits))
        for bits in WIDTHS
    }
    function, b = new_function(module, name, "i" + ARGUMENTS)
    end = function.append_basic_block("end")
    switch = b.switch(field_of(b, function.args[7], BITS), end)
    for bits, variant in widths.items():
        block = function.append_basic_block(f"bits{bits}")
        switch.add_case(int64(bits), block)
        b.position_at_end(block)
        b.call(variant, function.args)
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return function


def field_of(b: ir.IRBuilder, segment: ir.Value, field: int) -> ir.Value:
    return load(b, at(b, segment, 8 * field), i64, 8)


def _place(b: ir.IRBuilder, segment: ir.Value, field: int) -> ir.Value:
    return b.add(segment, field_of(b, segment, field))


def _emit_rows(bits: int, module: ir.Module, counts: range) -> ir.Function:
    """Computes the most rows and writes only existing ones. Rows beyond are read: that is the caller's memory."""
    most = counts[-1]
    function, b = new_function(module, f"triolet_gemm_stored_{bits}_{most}", "i" + ARGUMENTS)
    rows, a, a_stride, weights, groups, out, out_stride, segment, panel, following, add = function.args
    group_bytes = GROUP_VECTORS[bits] * VECTOR_BYTES
    stride = prefetch_stride(b, following, a, group_bytes)
    scales = GroupScales(b, CENTRES[bits], segment, panel, groups)
    is_fp4 = b.icmp_signed("!=", field_of(b, segment, IS_FP4), int64(0))

    def body(have_minima: bool | None, group: ir.Value, totals: Values) -> Values:  # None: the segment knows
        totals = list(totals)
        w = scaled(b, weights, group, group_bytes)
        ahead = b.add(following, b.mul(group, stride))
        for v in range(GROUP_VECTORS[bits]):
            prefetch(b, at(b, ahead if most > 1 else w, v * VECTOR_BYTES + (0 if most > 1 else AHEAD)))
        parts = scales.of_group(group, halves=bits == 6)
        codes = unpack(b, bits, w, in_pairs=dot.codes_in_pairs(most, bits))
        if bits == 4 and looked_up_here():
            codes = codes_of(b, is_fp4, codes)
        quads_a_part = len(codes) // len(parts)
        xs = [scaled(b, a, group, GROUP_BYTES)]
        for _ in range(1, most):
            xs.append(b.add(xs[-1], a_stride))
        offsets = [load(b, at(b, x, GROUP_OFFSET), f32) for x in xs]
        for part, scale in enumerate(parts):
            quads = range(part * quads_a_part, (part + 1) * quads_a_part)
            own = [[load(b, at(b, x, quad * 4), i32) for quad in quads] for x in xs]
            starts = [splat(b, load(b, at(b, x, start_place(bits, part)), i32)) for x in xs]
            sums = dot.code_steps(b, starts, [codes[quad] for quad in quads], own, bits)
            for row, offset in enumerate(offsets):
                exact = b.fsub(b.bitcast(sums[row], VF), splat(b, offset))
                totals[row] = fma(b, exact, scale, totals[row])
        less = partial(_less_minima, b, scales, group, parts, xs)
        if have_minima is None:
            return _if_any(b, scales.have_minima, less, totals)
        return less(totals) if have_minima else totals

    prefetch_output(b, out, out_stride, most)
    totals = [constant(f32, 0.0)] * most
    if most >= MANY_ROWS:  # with a branch around the minima LLVM moves all totals in each group: 2 to 4 %
        plain = b.select(scales.have_minima, int64(0), groups)
        totals = loop(b, plain, totals, partial(body, False))
        totals = loop(b, b.sub(groups, plain), totals, partial(body, True))
    else:
        totals = loop(b, groups, totals, partial(body, None))
    write_rows(b, totals, out, out_stride, add, (counts[0], rows))
    b.ret_void()
    return function


def start_place(bits: int, part: int) -> int:
    """Where a group of activations has the start value of its sum, or of that of a half."""
    if bits == 8 and not dot.codes_stay_unsigned():
        return GROUP_OFFSET
    return GROUP_STARTS[bits] + 4 * part


def _less_minima(
    b: ir.IRBuilder, scales: GroupScales, group: ir.Value, parts: Sequence[ir.Value], xs: Values, totals: Values
) -> Values:
    """The rows' totals less minimum * (sum of x) of each part."""
    places = [GROUP_SUM] if len(parts) == 1 else [GROUP_SUMS, GROUP_SUMS + 4]
    for place, minimum in zip(places, scales.minima_of_group(group, parts), strict=True):
        sums = [splat(b, load(b, at(b, x, place), f32)) for x in xs]
        totals = [fma(b, total, minimum, own) for own, total in zip(totals, sums, strict=True)]
    return totals


def _if_any(b: ir.IRBuilder, condition: ir.Value, change: Callable[[Values], Values], values: Values) -> Values:
    """`change(values)` where the condition holds, else the values."""
    before, some, end = b.block, b.append_basic_block("minima"), b.append_basic_block("group_end")
    b.cbranch(condition, some, end)
    b.position_at_end(some)
    changed, after = change(values), b.block
    b.branch(end)
    b.position_at_end(end)
    return [either(b, value, before, other, after) for value, other in zip(values, changed, strict=True)]


def unpack(b: ir.IRBuilder, bits: int, w: ir.Value, *, in_pairs: bool = False) -> list[ir.Value]:
    """The 8 quads of a group, as vectors of unsigned bytes; `paired` if asked, but for 6 bits."""
    vectors = [load(b, at(b, w, v * VECTOR_BYTES), VI, 64) for v in range(GROUP_VECTORS[bits])]
    vectors = paired(b, vectors) if in_pairs else vectors
    if bits == 8:
        return vectors
    low = [b.and_(packed, constant(i32, 0x0F0F0F0F)) for packed in vectors[:4]]
    low += [upper_nibbles(b, packed) for packed in vectors[:4]]
    if bits == 4:
        return low
    upper_mask = constant(i32, 0x30303030)
    codes = []
    for quad, nibbles in enumerate(low):
        packed, shift = vectors[4 + quad // 4], 4 - 2 * (quad % 4)
        if shift:
            packed = (b.shl if shift > 0 else b.lshr)(packed, constant(i32, abs(shift)))
        codes.append(b.or_(nibbles, b.and_(packed, upper_mask)))
    return codes


class GroupScales:
    """Reads the scales and minima of a panel, one vector of 16 channels for a group of inputs.

    Codes are counted from `centre`.
    """

    def __init__(self, b: ir.IRBuilder, centre: int, segment: ir.Value, panel: ir.Value, groups: ir.Value) -> None:
        self._b, self._centre = b, float(centre)
        self._kind, self._minimum_kind = field_of(b, segment, SCALE_KIND), field_of(b, segment, MINIMUM_KIND)
        self._stride, self._minimum_stride = field_of(b, segment, SCALE_STRIDE), field_of(b, segment, MINIMUM_STRIDE)
        self._shift, self._split = field_of(b, segment, SHIFT), field_of(b, segment, SPLIT)
        last = b.sub(b.shl(groups, self._split), int64(1))
        first_row = b.mul(panel, b.add(b.ashr(last, self._shift), int64(1)))
        self._scales = b.add(_place(b, segment, SCALES), b.mul(first_row, self._stride))
        self._minima = b.add(_place(b, segment, MINIMA), b.mul(first_row, self._minimum_stride))
        uppers = b.add(b.ashr(b.sub(groups, int64(1)), int64(UPPER_SHIFT)), int64(1))
        upper = b.mul(panel, b.mul(uppers, int64(UPPER_STRIDE)))
        self._upper_scales = b.add(_place(b, segment, UPPER_SCALES), upper)
        self._upper_minima = b.add(_place(b, segment, UPPER_MINIMA), upper)
        beside_centre = b.sub(int64(centre), field_of(b, segment, ZERO))
        self._zero = splat(b, b.sitofp(beside_centre, f32))
        self.have_minima = b.icmp_signed("!=", b.or_(self._minimum_kind, beside_centre), int64(0))

    def of_group(self, group: ir.Value, *, halves: bool) -> list[ir.Value]:
        """Scales of the group, or of each of its halves."""
        upper = self._upper(group)
        return [self._scale(row, upper) for row in self._rows(group, 2 if halves else 1)]

    def minima_of_group(self, group: ir.Value, scales: Sequence[ir.Value]) -> list[ir.Value]:
        """With the sign turned, for the scales of of_group."""
        upper, rows = self._upper(group), self._rows(group, len(scales))
        return [self._minimum(row, upper, scale) for row, scale in zip(rows, scales, strict=True)]

    def _rows(self, group: ir.Value, parts: int) -> list[ir.Value]:
        first = self._b.lshr(self._b.shl(group, self._split), self._shift)
        return [first, self._b.add(first, self._split)][:parts]

    def _upper(self, group: ir.Value) -> ir.Value:
        return self._b.mul(self._b.lshr(group, int64(UPPER_SHIFT)), int64(UPPER_STRIDE))

    def _scale(self, row: ir.Value, upper: ir.Value) -> ir.Value:
        b, place = self._b, self._b.add(self._scales, self._b.mul(row, self._stride))
        return _switch(
            b,
            self._kind,
            [
                lambda: _halves(b, place),
                lambda: b.bitcast(b.shl(b.zext(load(b, place, vector(i16, LANES), 2), VI), constant(i32, 16)), VF),
                lambda: load(b, place, VF),
                lambda: b.fmul(_bytes(b, place, signed=True), _halves(b, b.add(self._upper_scales, upper))),
            ],
        )

    def _minimum(self, row: ir.Value, upper: ir.Value, scale: ir.Value) -> ir.Value:
        b, place = self._b, self._b.add(self._minima, self._b.mul(row, self._minimum_stride))

        def centred(minimum: ir.Value) -> ir.Value:
            return b.fsub(b.fmul(scale, constant(f32, self._centre)), minimum)

        return _switch(
            b,
            self._minimum_kind,
            [
                lambda: b.fmul(scale, self._zero),
                lambda: b.fmul(scale, b.fsub(constant(f32, self._centre), _bytes(b, place, signed=False))),
                lambda: centred(_halves(b, place)),
                lambda: centred(b.fmul(_bytes(b, place, signed=False), _halves(b, b.add(self._upper_minima, upper)))),
            ],
        )


def _halves(b: ir.IRBuilder, place: ir.Value) -> ir.Value:
    return half_to_float(b, load(b, place, vector(i16, LANES), 2))


def _bytes(b: ir.IRBuilder, place: ir.Value, *, signed: bool) -> ir.Value:
    values = load(b, place, vector(i8, LANES), 1)
    return b.sitofp(b.sext(values, VI) if signed else b.zext(values, VI), VF)


def _switch(b: ir.IRBuilder, kind: ir.Value, cases: Sequence[Callable[[], ir.Value]]) -> ir.Value:
    """The value of the case whose number is `kind`; the last one for any other number."""
    end = b.append_basic_block("decoded")
    blocks = [b.append_basic_block("kind") for _ in cases]
    switch = b.switch(kind, blocks[-1])
    found = list[tuple[ir.Value, ir.Block]]()
    for number, (block, case) in enumerate(zip(blocks, cases, strict=True)):
        if number < len(cases) - 1:
            switch.add_case(int64(number), block)
        b.position_at_end(block)
        found.append((case(), b.block))
        b.branch(end)
    b.position_at_end(end)
    phi = b.phi(VF)
    for value, block in found:
        phi.add_incoming(value, block)
    return phi
