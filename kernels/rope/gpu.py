"""One pass over the fused projection before attention: bias, q and k norm, rotation, KV-cache write.

A program is one token and KV_TILE of its key-value heads with their queries. Queries are rotated in place in qkv; keys
and values go to the slot of the token in the cache [pages, kv_heads, 64, head_dim], quantised with one scale per
token and head where the cache is int8 or e4m3 (uint8: its bits). A token with a negative slot is padding and is
not cached. Heads of any even size: a half is padded to HALF, a power of two, with lanes that load and store nothing.
A token whose value is not finite gets a key, or a key's scale, of NaN: the value alone would not be missed.

The launcher checks, picks the launch and launches; it allocates nothing.
"""

from dataclasses import dataclass

import torch

from ..gpu.language import await_inputs, cdiv, jit, next_power_of_2, tl
from ..gpu.table import E4M3_CAPABILITY, PAGE_TOKENS, LaunchRow, Table, choose
from ..quantise.gpu import group_scale, stored

LARGEST_BF16 = tl.constexpr(3.3895313892515355e38)


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
def rotated(
    low, high, norm, place, live, cos, sin, eps,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Normalise each head, where the model does, and turn its pairs (j, j + HEAD_DIM / 2).

    NORM: None, "head" (one gain for all heads) or "heads" (a gain for each, at `place` from `norm`).
    """
    if NORM is not None:
        pair = tl.arange(0, HALF)
        if CENTRED:
            mean = (tl.sum(low + high, 1) / HEAD_DIM)[:, None]
            low, high = tl.where(live, low - mean, 0.0), tl.where(live, high - mean, 0.0)
        inverse = tl.rsqrt(tl.sum(low * low + high * high, 1) / HEAD_DIM + eps)[:, None]
        if NORM == "head":
            low *= inverse * tl.load(norm + pair, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)[None, :]
            second = tl.load(norm + HEAD_DIM // 2 + pair, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)
            high *= inverse * second[None, :]
        else:
            low *= inverse * tl.load(norm + place, mask=live, other=0.0).to(tl.float32)
            high *= inverse * tl.load(norm + HEAD_DIM // 2 + place, mask=live, other=0.0).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@jit
def finite(values):
    """Zeros in the place of what is NaN, or infinite in bfloat16: attention multiplies all values of a page."""
    return tl.where(tl.abs(values) <= LARGEST_BF16, values, 0.0)


@jit
def are_finite(low, high):
    """[heads]: whether all values of a head stay as they are."""
    inside = (tl.abs(low) <= LARGEST_BF16) & (tl.abs(high) <= LARGEST_BF16)
    return tl.min(inside.to(tl.int32), 1) > 0


@jit
def write_cache(low, high, cache, scales, entry, live, mine, sound, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Store heads at their entries (int64, [heads]) of the cache, and their scales; NaN where not sound [heads]."""
    dtype: tl.constexpr = cache.dtype.element_ty
    at = cache + entry[:, None] * HEAD_DIM + tl.arange(0, HALF)[None, :]
    if dtype == tl.int8 or dtype == tl.float8e4nv or dtype == tl.uint8:
        largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), 1)
        tl.store(at, stored(low, largest, dtype), mask=live)
        tl.store(at + HEAD_DIM // 2, stored(high, largest, dtype), mask=live)
        tl.store(scales + entry, tl.where(sound, group_scale(largest, dtype), float("nan")), mask=mine)
    else:
        tl.store(at, tl.where(sound[:, None], low, float("nan")).to(dtype), mask=live)
        tl.store(at + HEAD_DIM // 2, tl.where(sound[:, None], high, float("nan")).to(dtype), mask=live)


@jit
def rope_cache_kernel(
    qkv, bias, q_norm, k_norm, table, growth, positions, slots, keys, values, key_scales, value_scales, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, KV_TILE: tl.constexpr,
    Q_TILE: tl.constexpr, HALF: tl.constexpr, HAS_BIAS: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    await_inputs()
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
    low, high = rotated(low, high, q_norm, place, live, cos, sin, eps, HEAD_DIM, HALF, NORM, CENTRED)
    if growth is not None:
        grown = tl.load(growth + tl.load(positions + token))
        low, high = low * grown, high * grown
    tl.store(row + place, low.to(qkv.dtype.element_ty), mask=live)
    tl.store(row + place + HEAD_DIM // 2, high.to(qkv.dtype.element_ty), mask=live)

    slot = tl.load(slots + token)
    head = first + tl.arange(0, KV_TILE)
    mine = head < tl.where(slot >= 0, KV_HEADS, 0)
    live = mine[:, None] & real[None, :]
    entry = ((slot // PAGE).to(tl.int64) * KV_HEADS + head) * PAGE + slot % PAGE
    place = (HEADS + head)[:, None] * HEAD_DIM + pair[None, :]
    low, high = load_halves(row, bias, place, live, HEAD_DIM, HAS_BIAS)
    at_gain = head[:, None] * HEAD_DIM + pair[None, :]
    low, high = rotated(low, high, k_norm, at_gain, live, cos, sin, eps, HEAD_DIM, HALF, NORM, CENTRED)
    low_value, high_value = load_halves(row, bias, place + KV_HEADS * HEAD_DIM, live, HEAD_DIM, HAS_BIAS)
    sound = are_finite(low_value, high_value)
    write_cache(low, high, keys, key_scales, entry, live, mine, sound, HEAD_DIM, HALF)
    write_cache(finite(low_value), finite(high_value), values, value_scales, entry, live, mine, mine, HEAD_DIM, HALF)


@dataclass(frozen=True, slots=True)
class RopeLaunch:
    kv_tile: int  # key-value heads per program, at most
    num_warps: int


# By the number of tokens. No sum crosses a head, but the order of one within a head (of q/k norm) follows from the
# tile and its warps. So strict launches take the first row for any number of tokens.
TABLE: Table[RopeLaunch] = {
    80: (
        LaunchRow(
            512,
            RopeLaunch(1, 1),
            "compiled: at most 72 registers, no spills; one head each, to spread a decode batch; not measured",
        ),
        LaunchRow(
            None,
            RopeLaunch(8, 4),
            "compiled: at most 78 registers, no spills; fewer programs read the angles; not measured",
        ),
    ),
}


CACHE_DTYPES = (torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """What a layer adds to and multiplies with its heads before they turn."""

    bias: torch.Tensor | None = None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: torch.Tensor | None = None  # [head_dim], or [heads, head_dim] with a gain for each; both or none
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6
    centred: bool = False  # the norm is LayerNorm


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer of the KV cache. Scales, for int8 and e4m3 only: float32 [pages, kv_heads, 64]."""

    keys: torch.Tensor  # [pages, kv_heads, 64, head_dim]
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


def rope_cache(
    qkv: torch.Tensor,
    weights: HeadWeights,
    table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    *,
    capability: int,
    strict: bool = False,
    growth: torch.Tensor | None = None,
) -> None:
    """Turn the queries of qkv [tokens, (heads + 2 kv_heads) * head_dim] in place; cache the turned keys and the values.

    table float32 [positions, head_dim]: cosines, then sines. positions and slots int32 [tokens]; a slot is page * 64
    + offset, negative for padding, whose position must still be one of the table. strict: a token's bits do not depend
    on how many there are. growth float32 [positions]: what the turned queries of each are multiplied by.
    """
    tokens, width = qkv.shape
    pages, kv_heads, page, head_dim = cache.keys.shape
    heads = width // head_dim - 2 * kv_heads
    if page != PAGE_TOKENS or head_dim % 2 or heads <= 0 or heads % kv_heads or width % head_dim:
        raise ValueError(f"qkv {tuple(qkv.shape)} does not go with {PAGE_TOKENS}-token pages {tuple(cache.keys.shape)}")
    if cache.values.shape != cache.keys.shape or cache.values.dtype != cache.keys.dtype:
        raise ValueError("keys and values must have one shape and type")
    quantised = cache.keys.dtype in (torch.int8, torch.float8_e4m3fn)
    for scales in (cache.key_scales, cache.value_scales):
        if quantised != (scales is not None) or (scales is not None and scales.shape != (pages, kv_heads, PAGE_TOKENS)):
            wanted = f"scales [{pages}, {kv_heads}, {PAGE_TOKENS}]" if quantised else "no scales"
            raise ValueError(f"a {cache.keys.dtype} cache must have {wanted}")
    if cache.keys.dtype not in CACHE_DTYPES:
        raise ValueError(f"a cache may be any of {CACHE_DTYPES}, and is {cache.keys.dtype}")
    if table.dtype != torch.float32 or table.shape[1] != head_dim:
        raise ValueError(f"table must be float32 [positions, {head_dim}]")
    if (weights.q_norm is None) != (weights.k_norm is None):
        raise ValueError("norms must be given for both q and k, or for none")
    kind = _norm_kind(weights, heads, kv_heads, head_dim)
    if growth is not None and (growth.dtype != torch.float32 or growth.shape != table.shape[:1]):
        raise ValueError(f"growth must be float32 [{len(table)}]")
    if not positions.dtype == slots.dtype == torch.int32 or not positions.shape == slots.shape == (tokens,):
        raise ValueError(f"positions and slots must be int32 [{tokens}]")
    if not all(tensor.is_contiguous() for tensor in (qkv, table, cache.keys, cache.values)):
        raise ValueError("qkv, table, keys and values must be contiguous")
    if tokens == 0:
        return
    keys, values = cache.keys, cache.values
    if keys.dtype == torch.float8_e4m3fn and capability < E4M3_CAPABILITY:  # the kernel makes the bits itself
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    launch = choose(TABLE, capability, 1 if strict else tokens)
    kv_tile = min(launch.kv_tile, next_power_of_2(kv_heads))
    rope_cache_kernel[(tokens, cdiv(kv_heads, kv_tile))](
        qkv, _or(weights.bias, qkv), _or(weights.q_norm, qkv), _or(weights.k_norm, qkv), table, growth, positions,
        slots, keys, values, _or(cache.key_scales, table), _or(cache.value_scales, table), weights.eps,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=PAGE_TOKENS, KV_TILE=kv_tile,
        Q_TILE=next_power_of_2(kv_tile * (heads // kv_heads)), HALF=next_power_of_2(head_dim // 2),
        HAS_BIAS=weights.bias is not None, NORM=kind, CENTRED=weights.centred, num_warps=launch.num_warps,
    )  # fmt: skip


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """A pointer that the kernel will not follow, where there is no tensor."""
    return other if tensor is None else tensor


def _norm_kind(weights: HeadWeights, heads: int, kv_heads: int, head_dim: int) -> str | None:
    if weights.q_norm is None or weights.k_norm is None:
        return None
    shapes = tuple(weights.q_norm.shape), tuple(weights.k_norm.shape)
    if shapes == ((head_dim,),) * 2:
        return "head"
    if shapes != ((heads, head_dim), (kv_heads, head_dim)):
        raise ValueError(f"norms of q and k are {shapes}: give [{head_dim}], or a line of so many for each head")
    return "heads"
