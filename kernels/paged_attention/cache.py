"""The KV cache of one layer: [block][kv head] regions, each the keys and then the values of 64 tokens.

    float32    K [size][64 tokens]         V [64 tokens][size]
    bfloat16   K [size / 2][64 tokens][2]  V [32 token pairs][size][2]

`size` is the padded head. A vector of K is 16 TOKENS, so 16 scores come out at once without horizontal sums, and a
vector of V is 16 dimensions. In both formats K is one 32-bit word per token every 256 bytes. A reused block is not
cleared: what lies beyond its sequence's end may be anything, NaN included.
"""

from __future__ import annotations

from llvmlite import ir

from ..simd.arithmetic import round_bfloat16
from ..simd.functions import Values, kernel, loop, new_function
from ..simd.lanes import LANES, VF, VI, at, i32, int64, load, scaled, store

BLOCK_TOKENS = 64
WORD_STRIDE = BLOCK_TOKENS * 4  # bytes from one word of a key to the next


def region_bytes(padded_head: int, cache_bytes: int) -> int:
    """Keys and values of one block and kv head."""
    return 2 * BLOCK_TOKENS * padded_head * cache_bytes


def _emit_key(module: ir.Module, weight_format: str) -> ir.Function:
    name = f"triolet_store_key_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiii")
    key, region, token, size = function.args
    first = b.add(region, b.mul(token, int64(4)))
    words = size if weight_format == "float32" else b.sdiv(size, int64(2))

    def body(index: ir.Value, _: Values) -> Values:
        row = load(b, scaled(b, key, index, 4 * LANES), VI)
        target = scaled(b, first, index, LANES * WORD_STRIDE)
        for lane in range(LANES):
            store(b, b.extract_element(row, ir.Constant(i32, lane)), at(b, target, lane * WORD_STRIDE))
        return []

    loop(b, b.sdiv(words, int64(LANES)), [], body)
    b.ret_void()
    return function


def _emit_value(module: ir.Module, weight_format: str) -> ir.Function:
    name = f"triolet_store_value_{weight_format}"
    if name in module.globals:
        return module.globals[name]
    function, b = new_function(module, name, "iiiii")
    x, bias, region, token, size = function.args
    is_float32 = weight_format == "float32"
    values = b.add(region, b.mul(size, int64(BLOCK_TOKENS * (4 if is_float32 else 2))))
    if is_float32:
        first = b.add(values, b.mul(b.mul(token, size), int64(4)))
    else:  # the token's half of each pair: the other half belongs to another token, perhaps of another thread
        pair, half = b.lshr(token, int64(1)), b.and_(token, int64(1))
        first = b.add(b.add(values, b.mul(b.mul(pair, size), int64(4))), b.mul(half, int64(2)))

    def body(index: ir.Value, _: Values) -> Values:
        offset = b.mul(index, int64(4 * LANES))
        row = b.fadd(load(b, b.add(x, offset), VF), load(b, b.add(bias, offset), VF))
        target = b.add(first, offset)
        if is_float32:
            store(b, row, target)
            return []
        rounded = round_bfloat16(b, row)
        for lane in range(LANES):
            store(b, b.extract_element(rounded, ir.Constant(i32, lane)), at(b, target, lane * 4), 2)
        return []

    loop(b, b.sdiv(size, int64(LANES)), [], body)
    b.ret_void()
    return function


# store_key(tag, key, region, token, size): a key as rope_head leaves it, to token 0..63 of a region
store_key = kernel("iiii", _emit_key)
# store_value(tag, x, bias, region, token, size): a float32 value row plus its bias, rounded to the cache's format
store_value = kernel("iiiii", _emit_value)
