"""Packs rows of weights into the panels of tile.py: 16 channels at a time, each a row of the checkpoint.

Rows that are in the panels' own number format, without gaps, are transposed from where they lie. Others are first
placed in a float32 row, and rounded or quantised into a buffer that stays in the L2 cache. One thread packs 3.8 GB of
bfloat16 a second into bfloat16 or int8 panels (AMD Zen 3).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..compile_cache import compiled
from ..simd.arithmetic import maximum, nearest_integer, reduce_maximum, round_bfloat16
from ..simd.formats import GROUP, WEIGHT_BITS, Tag
from ..simd.functions import Values, by_format, loop, written_kernel
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VI,
    constant,
    f32,
    float32,
    i8,
    i16,
    i32,
    i64,
    int64,
    load,
    scaled,
    splat,
    store,
    vector,
    vector_at,
)
from .pack_int4 import pack_int4
from .tile_int4 import SCALE_GROUP_BYTES

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
SMALLEST_SCALE = 1e-20  # of int8: a channel of zeros has one too


def _interleave(b: ir.IRBuilder, _: str, rows: ir.Value, words: ir.Value, target: ir.Value) -> None:
    """target[word][row] = row[word], for the 16 rows whose addresses are at `rows`: 16 by 16 words at a time.

    Four rounds exchange halves, quarters, eighths and single words between pairs of vectors.
    """
    addresses = [load(b, scaled(b, rows, int64(row), 8), i64, 8) for row in range(LANES)]

    def body(index: ir.Value, _: Values) -> Values:
        vectors = [load(b, scaled(b, address, index, VECTOR_BYTES), VI, 1) for address in addresses]
        distance = LANES // 2
        while distance:
            low = [lane if not lane & distance else lane - distance + LANES for lane in range(LANES)]
            high = [lane + distance if not lane & distance else lane + LANES for lane in range(LANES)]
            masks = [ir.Constant(VI, places) for places in (low, high)]
            for row in range(LANES):
                if not row & distance:
                    pair = vectors[row], vectors[row + distance]
                    vectors[row], vectors[row + distance] = (b.shuffle_vector(*pair, mask) for mask in masks)
            distance //= 2
        start = scaled(b, target, index, LANES * VECTOR_BYTES)
        for word, value in enumerate(vectors):
            store(b, value, scaled(b, start, int64(word), VECTOR_BYTES), 64)
        return []

    whole = b.sdiv(words, int64(LANES))
    loop(b, whole, [], body)
    done = b.mul(whole, int64(LANES))

    def single(index: ir.Value, _: Values) -> Values:
        word = b.add(done, index)
        for row, address in enumerate(addresses):
            value = load(b, scaled(b, address, word, 4), i32, 1)
            store(b, value, scaled(b, scaled(b, target, word, VECTOR_BYTES), int64(row), 4))
        return []

    loop(b, b.sub(words, done), [], single)


def _widen(b: ir.IRBuilder, _: str, source: ir.Value, bfloat16: ir.Value, count: ir.Value, out: ir.Value) -> None:
    """`count` values as float32; from float32, or from bfloat16 if the flag is set."""
    wide, lanes = b.icmp_signed("==", bfloat16, int64(0)), int64(LANES)

    def widened(start: ir.Value, kind: ir.Type, half: ir.Type, size: int) -> None:
        with b.if_else(wide) as (whole, halves):
            with whole:
                store(b, load(b, scaled(b, source, start, 4), kind), scaled(b, out, start, 4))
            with halves:
                bits = b.zext(load(b, scaled(b, source, start, 2), half, 2), kind)
                sixteen = constant(i32, 16, size) if size > 1 else ir.Constant(i32, 16)
                store(b, b.shl(bits, sixteen), scaled(b, out, start, 4))

    def vectors(index: ir.Value, _: Values) -> Values:
        widened(b.mul(index, lanes), VI, vector(i16, LANES), LANES)
        return []

    loop(b, b.sdiv(count, lanes), [], vectors)
    done = b.mul(b.sdiv(count, lanes), lanes)

    def single(index: ir.Value, _: Values) -> Values:
        widened(b.add(done, index), i32, i16, 1)
        return []

    loop(b, b.sub(count, done), [], single)


def _narrow(
    b: ir.IRBuilder, weight_format: str, wide: ir.Value, k: ir.Value, out: ir.Value, scale_at: ir.Value
) -> None:
    """A float32 row as bfloat16, nearest even, or as w + 128 with the scale max |row| / 127."""
    vectors = b.sdiv(k, int64(LANES))
    if weight_format != "int8":

        def rounded(index: ir.Value, _: Values) -> Values:
            store(b, round_bfloat16(b, vector_at(b, wide, index)), scaled(b, out, index, 2 * LANES))
            return []

        loop(b, vectors, [], rounded)
        return

    def largest(index: ir.Value, found: Values) -> Values:
        value = vector_at(b, wide, index)
        return [maximum(b, found[0], value), maximum(b, found[1], b.fneg(value))]

    above, below = (reduce_maximum(b, side) for side in loop(b, vectors, [constant(f32, 0.0)] * 2, largest))
    most = b.select(b.fcmp_ordered(">", above, below), above, below)
    scale = b.fdiv(most, float32(127.0))
    scale = b.select(b.fcmp_ordered(">", scale, float32(SMALLEST_SCALE)), scale, float32(SMALLEST_SCALE))
    store(b, scale, scale_at)
    inverse = splat(b, b.fdiv(float32(1.0), scale))

    def quantised(index: ir.Value, _: Values) -> Values:
        value = nearest_integer(b, b.fmul(vector_at(b, wide, index), inverse))
        value = maximum(b, value, constant(f32, -127.0))
        value = b.select(b.fcmp_ordered("<", value, constant(f32, 127.0)), value, constant(f32, 127.0))
        bytes_ = b.trunc(b.add(b.fptosi(value, VI), constant(i32, 128)), vector(i8, LANES))
        store(b, bytes_, scaled(b, out, index, LANES), 1)
        return []

    loop(b, vectors, [], quantised)


interleave = written_kernel("interleave", "iii", _interleave)
widen = written_kernel("widen", "iiii", _widen)
narrow = written_kernel("narrow", "iiii", _narrow)
_bits = by_format(lambda weight_format: WEIGHT_BITS[weight_format])


@compiled
def pack_panels(
    tag: Tag,
    sources: Int64Array,
    halves: Int64Array,
    places: Int64Array,
    k: int,
    group_shift: int,
    panels: int,
    scales: int,
    staging: FloatArray,
    plain: FloatArray,
) -> None:
    """Fill panels and the scales of their channels, from a row of weights for each channel.

    `sources`, a multiple of 16, has the rows' addresses (0: a row of zeros), `halves` whether a row is bfloat16. Column
    j of a row goes to places[j] of k. Working memory: `staging`, [18, k] zeros, and `plain`, as long as a row.
    """
    bits, count = _bits(tag), places.shape[0]
    contiguous = True
    for column in range(count):
        contiguous = contiguous and places[column] == places[0] + column
    begin, stride = staging.ctypes.data, k * 4
    wide, zeros = begin + LANES * stride, begin + (LANES + 1) * stride
    addresses = np.empty(LANES, np.int64)
    for channel in range(sources.shape[0]):
        lane, source, half = channel % LANES, sources[channel], halves[channel]
        row = begin + lane * stride
        if contiguous and count == k and source != 0 and bits == (16 if half else 32):
            addresses[lane] = source
        elif bits == 32 and source == 0:
            addresses[lane] = zeros
        else:
            addresses[lane] = row
            as_float32 = bits == 32 or bits == 4  # what the panel is made from
            target = row if as_float32 else wide
            into = staging[lane if as_float32 else LANES]
            if source == 0:
                into[:] = 0
            elif contiguous:
                widen(tag, source, half, count, target + places[0] * 4)
            else:
                widen(tag, source, half, count, plain.ctypes.data)
                for column in range(count):
                    into[places[column]] = plain[column]
            if not as_float32:
                narrow(tag, wide, k, row, scales + channel * 4)
        if lane == LANES - 1:
            panel = channel // LANES
            to = panels + panel * k * LANES * bits // 8
            if bits == 4:
                of_a_panel = (k // GROUP + (1 << group_shift) - 1 >> group_shift) * SCALE_GROUP_BYTES
                pack_int4(tag, begin, LANES, k, to, scales + panel * of_a_panel, group_shift)
            else:
                interleave(tag, addresses.ctypes.data, k * bits // 32, to)
