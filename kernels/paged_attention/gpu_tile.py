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
from .gpu_codes import RAISED, joined, pairs_of, widened

PAGE = tl.constexpr(PAGE_TOKENS)  # tokens: a cache page is a tile
NEVER = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)


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
def operands_of(rows, CODE: tl.constexpr):
    """Queries as a cache's matrix operands: of codes, their even and their odd numbers; else the rows, twice."""
    even, odd = rows, rows
    if CODE is not None:
        even, odd = pairs_of(rows.to(tl.float16))
    return even, odd


@jit
def read_page(
    cache, region, seen, DTYPE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROW: tl.constexpr,
    MASKED: tl.constexpr, DESCRIPTORS: tl.constexpr, CODE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """A region [PAGE, PADDED_DIM] whose tokens are ROW apart: of codes its even and odd numbers, else twice the same.

    MASKED: zeros for tokens that are not `seen` [PAGE]. A page is always there whole, so bytes that nobody wrote are
    read without harm. Only as values must they be finite, for 0 * NaN is NaN: a new page is zeros, and rope writes no
    other value (rope/gpu.py). What latent vectors are written from may be anything. SHARED: see gpu_codes.py.
    """
    AT_ONCE: tl.constexpr = 1 if CODE is None else 2  # numbers in an element
    DIM: tl.constexpr = HEAD_DIM // AT_ONCE
    PADDED: tl.constexpr = PADDED_DIM // AT_ONCE
    APART: tl.constexpr = ROW // AT_ONCE
    if DESCRIPTORS:
        stored = cache.load([region * PAGE, 0])
    else:
        token, dim = tl.arange(0, PAGE), tl.arange(0, PADDED)
        place = cache + region.to(tl.int64) * (PAGE * APART) + (token[:, None] * APART + dim[None, :])
        if MASKED and PADDED != DIM:
            stored = tl.load(place, mask=seen[:, None] & (dim < DIM)[None, :], other=0.0)
        elif MASKED:
            stored = tl.load(place, mask=seen[:, None], other=0.0)
        elif PADDED != DIM:
            stored = tl.load(place, mask=(dim < DIM)[None, :], other=0)
        else:
            stored = tl.load(place)
    if CODE is None:
        even = stored.to(DTYPE)
        odd = even
    else:
        even, odd = widened(stored, CODE, SHARED)
    return even, odd


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
def page_scores(
    q, odd_q, k, odd_k, turned, turned_k, key_scale, factor, cap, CODE: tl.constexpr, SOFT_CAPPED: tl.constexpr
):  # fmt: skip
    """[rows, PAGE]; times `factor` they are in base 2, soft-capped ones already are. key_scale [PAGE]: of stored keys.
    turned and turned_k: the rotated parts of queries and keys where those are apart, or None.

    Plain: factor = scale * log2(e). Soft cap c: c tanh(s * scale / c) with factor = 2 log2(e) * scale / c and
    cap = c * log2(e), from tanh(x) = 1 - 2 / (exp(2x) + 1), which has its limits: 1 where exp(2x) is infinity.
    """
    scores = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision="ieee")
    if turned is not None:
        scores = tl.dot(turned, tl.trans(turned_k), scores, out_dtype=tl.float32, input_precision="ieee")
    if CODE is not None:
        scores = tl.dot(odd_q, tl.trans(odd_k), scores, out_dtype=tl.float32)
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
    scores, v, odd_v, value_scale, factor, maximum, total, output, odd_output, CODE: tl.constexpr,
    SOFT_CAPPED: tl.constexpr,
):  # fmt: skip
    """One page's share of the online softmax. value_scale [PAGE] must be 0 and v finite where nobody looks.

    Of codes, output and odd_output are of the even and the odd values, times RAISED; else odd_output stays as it is.

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
    if CODE is not None:
        weights *= (value_scale * RAISED)[None, :]
        odd_output = tl.dot(weights.to(odd_v.dtype), odd_v, odd_output * decay[:, None], out_dtype=tl.float32)
    output = tl.dot(weights.to(v.dtype), v, output * decay[:, None], out_dtype=tl.float32, input_precision="ieee")
    return raised, total, output, odd_output


@jit
def started_output(ROWS: tl.constexpr, PADDED_DIM: tl.constexpr, CODE: tl.constexpr):
    """The output before any page: of codes, that of the even and that of the odd values."""
    output = tl.zeros((ROWS, PADDED_DIM if CODE is None else PADDED_DIM // 2), tl.float32)
    return output, output


@jit
def whole_output(output, odd_output, CODE: tl.constexpr):
    """[rows, PADDED_DIM], as the values are."""
    if CODE is not None:
        output = joined(output, odd_output) * (1.0 / RAISED)
    return output
