"""What happens to the fused projection before attention, in one pass: bias, q and k norm, rotation, KV-cache write.

A program is one token and KV_TILE of its key-value heads with their queries. Queries are rotated in place in qkv; keys
and values go to the slot of the token in the cache [pages, kv_heads, PAGE, head_dim], quantised with one scale per
token and head where the cache is int8 or e4m3 (uint8: its bits). A token whose slot is negative is padding: nothing of
it is cached. Heads of any even size: a half is padded to HALF, a power of two, with lanes that load and store nothing.
"""

from ..gpu.language import jit, tl
from ..quantise.gpu import group_scale, stored


@jit
def load_halves(row, bias, place, live, HEAD_DIM: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Both halves of some heads, [heads, HALF] each."""
    low = tl.load(row + place, mask=live, other=0.0).to(tl.float32)
    high = tl.load(row + place + HEAD_DIM // 2, mask=live, other=0.0).to(tl.float32)
    if HAS_BIAS:
        low += tl.load(bias + place, mask=live, other=0.0).to(tl.float32)
        high += tl.load(bias + place + HEAD_DIM // 2, mask=live, other=0.0).to(tl.float32)
    return low, high


@jit
def rotated(low, high, norm, cos, sin, eps, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HAS_NORM: tl.constexpr):
    """Normalise each head, where the model does, and turn its pairs (j, j + HEAD_DIM / 2)."""
    if HAS_NORM:
        pair = tl.arange(0, HALF)
        inverse = tl.rsqrt(tl.sum(low * low + high * high, 1) / HEAD_DIM + eps)[:, None]
        low *= inverse * tl.load(norm + pair, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)[None, :]
        second = tl.load(norm + HEAD_DIM // 2 + pair, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)
        high *= inverse * second[None, :]
    return low * cos - high * sin, high * cos + low * sin


@jit
def write_cache(low, high, cache, scales, entry, live, mine, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Store heads at their entries (int64, [heads]) of the cache, and their scales."""
    dtype: tl.constexpr = cache.dtype.element_ty
    at = cache + entry[:, None] * HEAD_DIM + tl.arange(0, HALF)[None, :]
    if dtype == tl.int8 or dtype == tl.float8e4nv or dtype == tl.uint8:
        largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), 1)
        tl.store(at, stored(low, largest, dtype), mask=live)
        tl.store(at + HEAD_DIM // 2, stored(high, largest, dtype), mask=live)
        tl.store(scales + entry, group_scale(largest, dtype), mask=mine)
    else:
        tl.store(at, low.to(dtype), mask=live)
        tl.store(at + HEAD_DIM // 2, high.to(dtype), mask=live)


@jit
def rope_cache_kernel(
    qkv, bias, q_norm, k_norm, table, positions, slots, keys, values, key_scales, value_scales, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, KV_TILE: tl.constexpr,
    Q_TILE: tl.constexpr, HALF: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    token, first = tl.program_id(0), tl.program_id(1) * KV_TILE
    GROUP: tl.constexpr = HEADS // KV_HEADS
    pair = tl.arange(0, HALF)
    real = pair < HEAD_DIM // 2
    angle = table + tl.load(positions + token).to(tl.int64) * HEAD_DIM
    cos = tl.load(angle + pair, mask=real, other=0.0)[None, :]
    sin = tl.load(angle + HEAD_DIM // 2 + pair, mask=real, other=0.0)[None, :]
    row = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * HEAD_DIM)

    member = tl.arange(0, Q_TILE)
    query = first * GROUP + member
    live = ((member < KV_TILE * GROUP) & (query < HEADS))[:, None] & real[None, :]
    place = query[:, None] * HEAD_DIM + pair[None, :]
    low, high = load_halves(row, bias, place, live, HEAD_DIM, HAS_BIAS)
    low, high = rotated(low, high, q_norm, cos, sin, eps, HEAD_DIM, HALF, HAS_NORM)
    tl.store(row + place, low.to(qkv.dtype.element_ty), mask=live)
    tl.store(row + place + HEAD_DIM // 2, high.to(qkv.dtype.element_ty), mask=live)

    slot = tl.load(slots + token)
    head = first + tl.arange(0, KV_TILE)
    mine = head < tl.where(slot >= 0, KV_HEADS, 0)
    live = mine[:, None] & real[None, :]
    entry = ((slot // PAGE).to(tl.int64) * KV_HEADS + head) * PAGE + slot % PAGE
    place = (HEADS + head)[:, None] * HEAD_DIM + pair[None, :]
    low, high = load_halves(row, bias, place, live, HEAD_DIM, HAS_BIAS)
    low, high = rotated(low, high, k_norm, cos, sin, eps, HEAD_DIM, HALF, HAS_NORM)
    write_cache(low, high, keys, key_scales, entry, live, mine, HEAD_DIM, HALF)
    low, high = load_halves(row, bias, place + KV_HEADS * HEAD_DIM, live, HEAD_DIM, HAS_BIAS)
    write_cache(low, high, values, value_scales, entry, live, mine, HEAD_DIM, HALF)
