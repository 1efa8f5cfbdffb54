"""A rotated query as the attention kernel reads it: in the cache's format, or in 16 bits for an int8 cache.

int8: two rows of bytes, the upper and the lower half of q = 256 * upper + lower with |q| <= 32639, then a float32
scale and the int32 start of a sum, -128 * sum(q), which undoes the 128 added to the keys. With 8 bits the scores would
lose as much again as from the cache (0.6 % of their deviation); 16 bits cost one more pass over a block in L1.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.arithmetic import nearest_integer, reduce_integer_sum, round_bfloat16
from ..simd.dot import K_PER_STEP
from ..simd.formats import CacheFormat
from ..simd.functions import Values, kernel, loop, new_function
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VF,
    VI,
    constant,
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
from .cache import largest_of

LARGEST = 127 * 256 + 127


def query_bytes(padded_head: int, cache_format: CacheFormat) -> int:
    """Bytes of one row; an int8 row ends with a cache line for its scale and start."""
    if cache_format == "int8":
        return 2 * padded_head + VECTOR_BYTES
    return padded_head * 4 // K_PER_STEP[cache_format]


def _emit(module: ir.Module, cache_format: str) -> ir.Function:
    name = f"triolet_store_query_{cache_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iii")
    query, out, size = function.args
    vectors = b.sdiv(size, int64(LANES))

    def value(index: ir.Value) -> ir.Value:
        return load(b, scaled(b, query, index, 4 * LANES), VF)

    def plain(index: ir.Value, _: Values) -> Values:
        row = value(index) if cache_format == "float32" else round_bfloat16(b, value(index))
        store(b, row, scaled(b, out, index, 4 * LANES // K_PER_STEP[cache_format]))
        return []

    if cache_format != "int8":
        loop(b, vectors, [], plain)
        b.ret_void()
        return function
    largest = largest_of(b, vectors, value)
    inverse = splat(b, b.fdiv(float32(LARGEST), largest))

    def quantise(index: ir.Value, sums: Values) -> Values:
        q = b.fptosi(nearest_integer(b, b.fmul(value(index), inverse)), VI)
        upper = b.ashr(b.add(q, constant(i32, 128)), constant(i32, 8))
        target = scaled(b, out, index, LANES)
        store(b, b.trunc(upper, vector(i8, LANES)), target)
        store(b, b.trunc(q, vector(i8, LANES)), b.add(target, size))  # the lower half, from -128 to 127
        return [b.add(sums[0], q)]

    total = reduce_integer_sum(b, loop(b, vectors, [constant(i32, 0)], quantise)[0])
    end = b.add(out, b.mul(size, int64(2)))
    store(b, b.fdiv(largest, float32(LARGEST)), end)
    store(b, b.mul(total, ir.Constant(i32, -128)), b.add(end, int64(4)))
    b.ret_void()
    return function


# store_query(cache tag, query, out, size): a float32 query as rope_head leaves it, as query_bytes() at `out`
store_query = kernel("iii", _emit)
