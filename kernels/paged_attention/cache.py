"""The KV cache of one layer: [block][kv head] regions, each with the keys, then the values, of 64 tokens.

    float32    K [size][64 tokens]                                  V [64 tokens][size]
    bfloat16   K [size / 2][64 tokens][2]                           V [32 token pairs][size][2]
    int8       K [size / 4][64 tokens][4] + 64 float32 scales       V [16][size][4 x 16th token] + 64 float32 scales

`size` is the padded head. A vector of K is 16 TOKENS, so it gives 16 scores at once without horizontal sums; a vector
of V is 16 dimensions. In every format K has one 32-bit word per token every 256 bytes. int8 has one scale per token for
its key and one for its value, symmetric to +-127. Keys are stored plus 128, as the unsigned operand of the dot product.
A word of its values has the tokens t, t + 16, t + 32 and t + 48. A reused block is not cleared: past its sequence's end
it may hold anything, including NaN.

A cache of latent vectors (float32 or bfloat16) has one kv head, and regions of one half, laid out as V: its rows are
keys and values at once (latent_tile.py).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..quantise.reference import SMALLEST_MAXIMUM
from ..simd.arithmetic import absolute, maximum, nearest_integer, reduce_maximum, round_bfloat16
from ..simd.dot import K_PER_STEP
from ..simd.formats import CacheFormat, number_format_of
from ..simd.functions import Values, loop, written_kernel
from ..simd.lanes import (
    LANES,
    VF,
    VI,
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
    vector_at,
)

BLOCK_TOKENS = 64
WORD_STRIDE = BLOCK_TOKENS * 4  # bytes from one word of a key to the next
SCALES_BYTES = BLOCK_TOKENS * 4
QUADS = BLOCK_TOKENS // 4  # words of four tokens' values, and the distance of the tokens of a word
LONGEST_INT8_HEAD = 512  # times 127 * 32639, the largest product of a cached and a query value, fits into int32


def half_bytes(padded_head: int, cache_format: CacheFormat) -> int:
    """Bytes of the keys, or of the values, of one block and kv head, with their scales."""
    words = BLOCK_TOKENS * padded_head // K_PER_STEP[cache_format]
    return 4 * words + (SCALES_BYTES if cache_format == "int8" else 0)


def region_bytes(padded_head: int, cache_format: CacheFormat, *, latent: bool = False) -> int:
    """Bytes of the keys and values of one block and kv head."""
    return (1 if latent else 2) * half_bytes(padded_head, cache_format)


def values_of(b: ir.IRBuilder, cache_format: str, region: ir.Value, size: ir.Value) -> ir.Value:
    """The address of a region's values."""
    keys = b.mul(size, int64(BLOCK_TOKENS * 4 // K_PER_STEP[cache_format]))
    return at(b, b.add(region, keys), SCALES_BYTES if cache_format == "int8" else 0)


def scales_of(b: ir.IRBuilder, half: ir.Value, size: ir.Value) -> ir.Value:
    """The address of the 64 scales after a region's int8 keys or values, which begin at `half`."""
    return b.add(half, b.mul(size, int64(BLOCK_TOKENS)))


def largest_of(b: ir.IRBuilder, vectors: ir.Value, value: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """The largest magnitude of 16 * vectors values, but large enough that its inverse does not overflow."""
    start = [constant(f32, SMALLEST_MAXIMUM)]
    return reduce_maximum(b, loop(b, vectors, start, lambda i, found: [maximum(b, found[0], absolute(b, value(i)))])[0])


def _store_key(
    b: ir.IRBuilder, cache_format: str, key: ir.Value, region: ir.Value, token: ir.Value, size: ir.Value
) -> None:
    packed = K_PER_STEP[cache_format]
    words = LANES // packed  # of one vector
    first = b.add(region, b.mul(token, int64(4)))
    vectors = b.sdiv(size, int64(LANES))

    def value(index: ir.Value) -> ir.Value:
        return load(b, scaled(b, key, index, 4 * LANES), VF)

    inverse = _start_int8(b, vectors, value, scales_of(b, region, size), token) if cache_format == "int8" else None

    def body(index: ir.Value, _: Values) -> Values:
        elements = _elements(b, cache_format, value(index), inverse)
        if cache_format == "int8":
            elements = b.xor(elements, constant(i8, -128))  # plus 128
        row = b.bitcast(elements, vector(i32, words))
        target = scaled(b, first, index, words * WORD_STRIDE)
        for word in range(words):
            store(b, b.extract_element(row, ir.Constant(i32, word)), at(b, target, word * WORD_STRIDE))
        return []

    loop(b, vectors, [], body)


def _store_value(b: ir.IRBuilder, cache_format: str, *arguments: ir.Value) -> None:
    x, bias, region, token, size = arguments

    def value(index: ir.Value) -> ir.Value:
        return b.fadd(vector_at(b, x, index), vector_at(b, bias, index))

    _store_values(b, cache_format, value, values_of(b, cache_format, region, size), token, size)


def _store_row(
    b: ir.IRBuilder, cache_format: str, row: ir.Value, region: ir.Value, token: ir.Value, size: ir.Value
) -> None:
    _store_values(b, number_format_of(cache_format), lambda index: vector_at(b, row, index), region, token, size)


def _store_values(
    b: ir.IRBuilder,
    cache_format: str,
    value: Callable[[ir.Value], ir.Value],
    values: ir.Value,
    token: ir.Value,
    size: ir.Value,
) -> None:
    packed = K_PER_STEP[cache_format]
    # Only the token's part of each word: the rest belongs to other tokens, perhaps in another thread.
    if cache_format == "int8":
        word, part = b.urem(token, int64(QUADS)), b.udiv(token, int64(QUADS))
    else:
        word, part = b.udiv(token, int64(packed)), b.urem(token, int64(packed))
    first = b.add(b.add(values, b.mul(b.mul(word, size), int64(4))), b.mul(part, int64(4 // packed)))
    vectors = b.sdiv(size, int64(LANES))
    inverse = _start_int8(b, vectors, value, scales_of(b, values, size), token) if cache_format == "int8" else None

    def body(index: ir.Value, _: Values) -> Values:
        elements = _elements(b, cache_format, value(index), inverse)
        target = scaled(b, first, index, 4 * LANES)
        if packed == 1:
            store(b, elements, target)
            return []
        for lane in range(LANES):
            store(b, b.extract_element(elements, ir.Constant(i32, lane)), at(b, target, lane * 4), 4 // packed)
        return []

    loop(b, vectors, [], body)


def _start_int8(
    b: ir.IRBuilder, vectors: ir.Value, value: Callable[[ir.Value], ir.Value], scales: ir.Value, token: ir.Value
) -> ir.Value:
    """Store the scale of a token's row; returns its inverse in every lane."""
    largest = largest_of(b, vectors, value)
    store(b, b.fdiv(largest, float32(127.0)), scaled(b, scales, token, 4))
    return splat(b, b.fdiv(float32(127.0), largest))


def _elements(b: ir.IRBuilder, cache_format: str, value: ir.Value, inverse: ir.Value | None) -> ir.Value:
    """16 values in the cache's format."""
    if cache_format == "float32":
        return b.bitcast(value, VI)
    if cache_format == "bfloat16":
        return round_bfloat16(b, value)
    return b.trunc(b.fptosi(nearest_integer(b, b.fmul(value, inverse)), VI), vector(i8, LANES))


# store_key(cache tag, key, region, token, size): a float32 key as rope_head leaves it, to token 0..63 of a region
store_key = written_kernel("store_key", "iiii", _store_key)
# store_value(cache tag, x, bias, region, token, size): a float32 value row plus its bias
store_value = written_kernel("store_value", "iiiii", _store_value)
# store_row(cache tag, row, region, token, size): a float32 row of a cache of latent vectors
store_row = written_kernel("store_row", "iiii", _store_row)
