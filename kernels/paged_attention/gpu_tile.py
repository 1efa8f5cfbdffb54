"""What prefill and decode do alike with one page of the cache: its scores, and its share of the online softmax.

Rows are (token, query head of the group): every query head of a kv head goes through one matrix product, so that its
keys and values are read once. Softmax in base 2: the factor of a score includes log2(e).

A page that a row does not see leaves its maximum, sum and output exactly as they were: the maximum starts at a finite
NEVER, masked scores are -inf, so the probabilities are 0 and the decay is 2**0.

A sink is one more score of a head, of no key: the softmax starts with it.

Latent attention (ROPE_DIM > 0; multi-head latent attention, arXiv:2405.04434): a token has one row for all heads, its
latent vector of HEAD_DIM numbers, which is its value, and behind it the ROPE_DIM of its rotated key. All of it is the
key. Heads are then cut into KV_HEADS parts only so that one part's rows fill a tile: all parts read the same rows.
"""

from ..gpu.language import jit, tl
from ..gpu.table import PAGE_TOKENS

PAGE = tl.constexpr(PAGE_TOKENS)  # tokens: a cache page is a tile
NEVER = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)
E4M3_REBIASED = tl.constexpr(2.0**120)  # from float32's exponent bias (127) to e4m3's (7)


@jit
def widened(stored, DTYPE: tl.constexpr, E4M3_BITS: tl.constexpr):
    """Cache values as matrix operands, exactly. Below sm_89 Triton knows no e4m3: its bits are moved into float32's
    place, which is right for subnormals too. NaN becomes 480: nothing writes one, and stale bytes are masked.
    """
    if E4M3_BITS:
        bits = stored.to(tl.int32)
        moved = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        stored = moved.to(tl.float32, bitcast=True) * E4M3_REBIASED
    return stored.to(DTYPE)


@jit
def region_of(page, kv_head, KV_HEADS: tl.constexpr, ROPE_DIM: tl.constexpr):
    """The part of a page that a kv head reads."""
    if ROPE_DIM > 0:
        region = page
    else:
        region = page * KV_HEADS + kv_head
    return region


@jit
def read_turned(place, is_row, ROPE_DIM: tl.constexpr, PADDED_ROPE: tl.constexpr):
    """[rows, PADDED_ROPE] rotated parts of queries from `place` [rows, 1] on; None without latent vectors."""
    turned = None
    if ROPE_DIM > 0:
        dim = tl.arange(0, PADDED_ROPE)[None, :]
        turned = tl.load(place + dim, mask=is_row & (dim < ROPE_DIM), other=0.0)
    return turned


@jit
def read_page(
    cache, region, seen, DTYPE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROW: tl.constexpr,
    MASKED: tl.constexpr, DESCRIPTORS: tl.constexpr, E4M3_BITS: tl.constexpr,
):  # fmt: skip
    """[PAGE, PADDED_DIM] of a region, whose tokens are ROW apart. MASKED: zeros for tokens that are not `seen` [PAGE].

    A page is always there whole, so bytes nobody wrote are read without harm; only as values must they not be used:
    0 * NaN is NaN.
    """
    if DESCRIPTORS:
        stored = cache.load([region * PAGE, 0])
        if MASKED:
            stored = tl.where(seen[:, None], stored, tl.zeros_like(stored))
    else:
        token, dim = tl.arange(0, PAGE), tl.arange(0, PADDED_DIM)
        place = cache + region.to(tl.int64) * (PAGE * ROW) + (token[:, None] * ROW + dim[None, :])
        if MASKED and PADDED_DIM != HEAD_DIM:
            stored = tl.load(place, mask=seen[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
        elif MASKED:
            stored = tl.load(place, mask=seen[:, None], other=0.0)
        elif PADDED_DIM != HEAD_DIM:
            stored = tl.load(place, mask=(dim < HEAD_DIM)[None, :], other=0.0)
        else:
            stored = tl.load(place)
    return widened(stored, DTYPE, E4M3_BITS)


@jit
def read_scales(scales, region, seen, MASKED: tl.constexpr):
    """[PAGE], one for each token of a region. A stale one may be NaN like a stale value."""
    place = scales + region.to(tl.int64) * PAGE + tl.arange(0, PAGE)
    if MASKED:
        scale = tl.load(place, mask=seen, other=0.0)
    else:
        scale = tl.load(place)
    return scale


@jit
def page_scores(q, k, turned, turned_k, key_scale, factor, cap, SCALED: tl.constexpr, SOFT_CAPPED: tl.constexpr):
    """[rows, PAGE]; times `factor` they are in base 2, soft-capped ones already are. key_scale [PAGE]: of stored keys.
    turned and turned_k: the rotated parts of queries and keys where those are apart, or None.

    Plain: factor = scale * log2(e). Soft cap c: c tanh(s * scale / c) with factor = 2 log2(e) * scale / c and
    cap = c * log2(e), from tanh(x) = 1 - 2 / (exp(2x) + 1), which has its limits: 1 where exp(2x) is infinity.
    """
    scores = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision="ieee")
    if turned is not None:
        scores = tl.dot(turned, tl.trans(turned_k), scores, out_dtype=tl.float32, input_precision="ieee")
    if SCALED:
        scores *= key_scale[None, :]
    if SOFT_CAPPED:
        scores = cap - 2.0 * cap / (tl.exp2(scores * factor) + 1.0)
    return scores


@jit
def started(sinks, head, is_head, begins):
    """The maximum and the sum before any page, [rows]: of the heads' sinks where it begins with them."""
    maximum = tl.full(head.shape, NEVER, tl.float32)
    total = tl.zeros(head.shape, tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head, mask=is_head, other=0.0) * LOG2_E
        maximum = tl.where(begins, sink, maximum)
        total = tl.where(begins, 1.0, total)
    return maximum, total


@jit
def absorb(
    scores, v, value_scale, factor, maximum, total, output, SCALED: tl.constexpr, SOFT_CAPPED: tl.constexpr
):  # fmt: skip
    """One page's share of the online softmax. value_scale [PAGE] must be 0 and v finite where nobody looks.

    Multiply-adds are written out. Left to the compiler, prefill's loops would round apart: it fuses factor and maximum
    where no mask stands between them, and a row's bits would tell how its prompt was cut. (factor > 0.)
    """
    if SOFT_CAPPED:
        raised = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - raised[:, None])
    else:
        raised = tl.maximum(maximum, tl.max(scores, 1) * factor)
        weights = tl.exp2(tl.fma(scores, factor, -raised[:, None]))
    decay = tl.exp2(maximum - raised)
    total = tl.fma(total, decay, tl.sum(weights, 1))
    if SCALED:
        weights *= value_scale[None, :]
    output = tl.dot(weights.to(v.dtype), v, output * decay[:, None], out_dtype=tl.float32, input_precision="ieee")
    return raised, total, output
