"""A rotated query as the attention kernel reads it: rounded to the cache's format, or to 16 bits for an int8 cache.

bfloat16 is float32 again where the CPU does not multiply pairs of it.

int8: two rows of bytes, the upper and the lower half of q = 256 * upper + lower with |q| <= 32639, then a float32
scale and the int32 start of a sum, -128 * sum(q), which undoes the 128 added to the keys. With 8 bits the scores would
lose as much again as from the cache (0.6 % of their deviation); 16 bits cost one more pass over a block in L1.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.arithmetic import nearest_integer, reduce_integer_sum
from ..simd.dot import K_PER_STEP, as_broadcast, broadcast_format
from ..simd.formats import CacheFormat
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import (
    LANES,
    VECTOR_BYTES,
    VI,
    constant,
    float32,
    i8,
    i32,
    int64,
    scaled,
    splat,
    store,
    vector,
    vector_at,
)
from .cache import largest_of

LARGEST = 127 * 256 + 127


def query_bytes(padded_head: int, cache_format: CacheFormat) -> int:
    """Bytes of one row; an int8 row ends with a cache line for its scale and start."""
    if cache_format == "int8":
        return 2 * padded_head + VECTOR_BYTES
    return padded_head * 4 // K_PER_STEP[broadcast_format(cache_format)]


def _store_query(b: ir.IRBuilder, cache_format: str, query: ir.Value, out: ir.Value, size: ir.Value) -> None:
    vectors, kept = b.sdiv(size, int64(LANES)), broadcast_format(cache_format)

    def value(index: ir.Value) -> ir.Value:
        return vector_at(b, query, index)

    def plain(index: ir.Value, _: Values) -> Values:
        row = value(index) if cache_format == "float32" else as_broadcast(b, value(index))
        store(b, row, scaled(b, out, index, 4 * LANES // K_PER_STEP[kept]))
        return []

    if cache_format != "int8":
        loop(b, vectors, [], plain)
        return
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


# store_query(cache tag, query, out, size): a float32 query as rope_head leaves it, as query_bytes() at `out`
store_query = written_kernel("store_query", "iii", _store_query)
