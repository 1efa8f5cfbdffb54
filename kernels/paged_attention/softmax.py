"""The online softmax of one block of 64 scores, row after row, in base 2, as LLVM IR.

A row's record is RECORD_BYTES of a thread's scratch: its maximum and sum so far (the sum in 16 lanes), the factor for
its output so far, the factor for this block's products, and the 64 scores. The probabilities replace the scores, in the
format of the second product: float32, bfloat16 (as float32 where the CPU does not multiply pairs), or bytes for an int8
cache.

int8: the scores come as integers and get the scales of query and keys here. The scale of each value is multiplied into
its probability. The 64 products become 16-bit integers, with the row's largest in the block at 65535: 64 upper bytes,
then 64 lower ones. (8 bits alone would cause an error of 0.4 % of the output, at worst over 1 %. The second pass over
the values costs decode nothing, since it waits for memory.) Word t has the bytes of tokens t, t + 16, t + 32 and t +
48, like the cached values: so four vectors become one without moving a lane.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir

from ..simd.arithmetic import fma, maximum, reduce_maximum, tanh_capped
from ..simd.dot import round_to_broadcast
from ..simd.functions import Values, either, loop, new_function
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    at,
    constant,
    f32,
    float32,
    i32,
    i64,
    lane_numbers,
    load,
    scaled,
    splat,
    store,
)
from .cache import BLOCK_TOKENS

TOKEN_VECTORS = BLOCK_TOKENS // LANES
MAXIMUM, SUM, FACTOR, WEIGHT, SCORES = (VECTOR_BYTES * index for index in range(5))
UPPER, LOWER = SCORES, SCORES + VECTOR_BYTES
RECORD_BYTES = SCORES + BLOCK_TOKENS * 4
# Per row: address of its output, first visible key, last visible key; two float32, the maximum and sum to start from.
DESCRIPTOR_BYTES = 32
NEVER = -1e30  # the score of an unseen key
# What a row starts from that has no sink: no score at all. A row with one starts from the sink's score, and 1.
NO_SINK = int(np.array([NEVER, 0], np.float32).view(np.int64)[0])
LARGEST_PRODUCT = 65535.0
SMALLEST_PRODUCT = 1e-30  # for a row's largest; smaller ones count as zero
SHIFT = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
ARGUMENTS = "iiiiiiiif"


def _terms(count: int) -> list[float]:
    """Coefficients of 2**r on [-1/2, 1/2] by interpolation, exactly 1 for r = 0, so that factors do not drift.

    The error is 2e-4 with 4 terms, 1e-8 with 7.
    """
    nodes = np.cos((np.arange(count - 1) + 0.5) * math.pi / (count - 1)) / 2
    slopes = np.expm1(nodes * math.log(2.0)) / nodes
    return [1.0, *(float(term) for term in np.polynomial.polynomial.polyfit(nodes, slopes, count - 2))]


def _power(b: ir.IRBuilder, x: ir.Value, terms: list[float]) -> ir.Value:
    """2**x for x <= 0, with x clamped to -120: never zero or denormal."""
    x = maximum(b, x, constant(f32, -120.0))
    shift = constant(f32, SHIFT)
    shifted = b.fadd(x, shift)
    rest = b.fsub(x, b.fsub(shifted, shift))
    value = constant(f32, terms[-1])
    for term in reversed(terms[:-1]):
        value = fma(b, value, rest, constant(f32, term))
    exponent = b.shl(b.bitcast(shifted, VI), constant(i32, 23))
    return b.bitcast(b.add(b.bitcast(value, VI), exponent), VF)


def emit(module: ir.Module, cache_format: str, *, masked: bool) -> ir.Function:
    """f(rows, records, descriptors, start, queries, query stride, key scales, value scales, cap).

    `start` is the position of the block's first key; `masked` means that some row does not see all of the block.
    `queries` points to the first row's scale and start of sum; it and the three arguments after it are only for int8.
    A `cap` other than 0 turns each score s into cap * tanh(s / cap).
    """
    name = f"triolet_softmax_{cache_format}{'_masked' if masked else ''}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, ARGUMENTS)
    rows, records, descriptors, start, queries, query_stride, key_scales, value_scales, cap = function.args
    caps = splat(b, cap)
    has_cap = b.fcmp_ordered("!=", cap, float32(0.0))
    terms = _terms(7 if cache_format == "float32" else 4)  # 4: a tenth of the error of rounding to 8 bits

    def scores_of(record: ir.Value, row: ir.Value) -> tuple[Values, ir.Value | None]:
        """The scores and None; for int8 the scores without the scale of the query, and that scale."""
        places = [at(b, record, SCORES + v * VECTOR_BYTES) for v in range(TOKEN_VECTORS)]
        if cache_format != "int8":
            return [load(b, place, VF, 64) for place in places], None
        end = b.add(queries, b.mul(row, query_stride))
        scale, first = splat(b, load(b, end, f32)), splat(b, load(b, at(b, end, 4), i32))
        found = []
        for v, place in enumerate(places):
            total = b.sitofp(b.add(load(b, place, VI, 64), first), VF)
            found.append(b.fmul(total, load(b, at(b, key_scales, v * VECTOR_BYTES), VF, 64)))
        return found, scale

    def capped(scores: Values, scale: ir.Value | None) -> tuple[Values, ir.Value | None]:
        """The scores of a model with a soft cap, which are then whole: int8's scale becomes 1. Other models jump."""
        before = b.block
        with b.if_then(has_cap):
            whole = scores if scale is None else [b.fmul(score, scale) for score in scores]
            new = [tanh_capped(b, score, caps) for score in whole]
            inside = b.block
        results = []
        for old, changed in zip(scores, new, strict=True):
            results.append(either(b, changed, inside, old, before))
        if scale is None:
            return results, None
        return results, either(b, constant(f32, 1.0), inside, scale, before)

    def seen_by(row: ir.Value) -> Values:
        limits = [load(b, at(b, scaled(b, descriptors, row, DESCRIPTOR_BYTES), offset), i64) for offset in (8, 16)]
        lowest, highest = (splat(b, b.trunc(b.sub(limit, start), i32)) for limit in limits)
        tokens = [lane_numbers(v * LANES) for v in range(TOKEN_VECTORS)]
        return [b.and_(b.icmp_signed(">=", t, lowest), b.icmp_signed("<=", t, highest)) for t in tokens]

    def where_seen(seen: Values, vectors: Values, other: float) -> Values:
        if not masked:
            return vectors
        return [b.select(mask, x, constant(f32, other)) for mask, x in zip(seen, vectors, strict=True)]

    def largest_of(vectors: Values) -> ir.Value:
        first, second = (maximum(b, *vectors[start : start + 2]) for start in (0, 2))
        return reduce_maximum(b, maximum(b, first, second))

    def body(row: ir.Value, _: Values) -> Values:
        record = scaled(b, records, row, RECORD_BYTES)
        scores, scale = capped(*scores_of(record, row))
        seen = seen_by(row) if masked else []
        scores = where_seen(seen, scores, NEVER)
        before, total = (load(b, at(b, record, offset), VF, 64) for offset in (MAXIMUM, SUM))
        largest = splat(b, largest_of(scores))
        after = maximum(b, largest if scale is None else b.fmul(largest, scale), before)
        factor = _power(b, b.fsub(before, after), terms)
        below = [b.fsub(x, after) if scale is None else fma(b, x, scale, b.fneg(after)) for x in scores]
        probabilities = [_power(b, x, terms) for x in below]
        probabilities = where_seen(seen, probabilities, 0.0)
        total = b.fmul(total, factor)
        for probability in probabilities:
            total = b.fadd(total, probability)
        for value, offset in ((after, MAXIMUM), (total, SUM), (factor, FACTOR)):
            store(b, value, at(b, record, offset), 64)
        if cache_format == "int8":
            keep_bytes(record, probabilities, seen)
            return []
        rows_of = round_to_broadcast(b, probabilities) if cache_format == "bfloat16" else probabilities
        for v, kept in enumerate(rows_of):
            store(b, kept, at(b, record, SCORES + v * VECTOR_BYTES), 64)
        return []

    def keep_bytes(record: ir.Value, probabilities: Values, seen: Values) -> None:
        products = []
        for v, probability in enumerate(probabilities):
            products.append(b.fmul(probability, load(b, at(b, value_scales, v * VECTOR_BYTES), VF, 64)))
        # mask again, because the scale of an unseen key may be NaN
        products = where_seen(seen, products, 0.0)
        found = largest_of(products)
        found = b.select(b.fcmp_ordered(">", found, float32(SMALLEST_PRODUCT)), found, float32(SMALLEST_PRODUCT))
        inverse = splat(b, b.fdiv(float32(LARGEST_PRODUCT), found))
        store(b, splat(b, b.fmul(found, float32(1 / LARGEST_PRODUCT))), at(b, record, WEIGHT), 64)
        integers = [b.bitcast(fma(b, product, inverse, constant(f32, SHIFT)), VI) for product in products]
        for half in (1, 0):
            word = constant(i32, 0)
            for v, integer in enumerate(integers):
                byte = b.and_(b.lshr(integer, constant(i32, 8 * half)), constant(i32, 255))
                word = b.or_(word, b.shl(byte, constant(i32, 8 * v)))
            store(b, word, at(b, record, UPPER if half else LOWER), 64)

    loop(b, rows, [], body)
    b.ret_void()
    return function
