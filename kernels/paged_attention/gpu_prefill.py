"""Paged attention of prompt chunks: tiles of query rows over the pages of their sequence, the chunk's own included.

Grid (kv heads, query tiles), static: tiles = tokens // TOKENS + sequences, of which a chunk of n tokens uses
cdiv(n, TOKENS); a tile finds its chunk in `starts`. Late tiles have the most pages and start first. Chunks of one
token belong to decode. Only pages on an edge (the diagonal, the sequence's end, the window's lower end) are masked.

The next page's number is carried through the loop: were it loaded where it is used, Triton would spend its pipeline's
stages on that load, and copy keys and values one page ahead whatever the number of stages.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_tile import (
    PAGE,
    absorb,
    operands_of,
    page_scores,
    read_page,
    read_scales,
    read_turned,
    region_of,
    started,
    started_output,
    whole_output,
)


@jit
def attend_page(
    query_rows, odd_rows, turned, keys, values, key_scales, value_scales, number, page, kv_head, high, window, length,
    maximum, total, output, odd_output, factor, cap,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    PADDED_ROPE: tl.constexpr, SOFT_CAPPED: tl.constexpr, CODE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    WINDOWED: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """`number`: the cache's, of page `page` of the sequence. Rows see the positions up to `high` [rows], or the last
    `window` of them; without EDGE, the whole page."""
    position = page * PAGE + tl.arange(0, PAGE)
    region = region_of(number, kv_head, KV_HEADS, ROPE_DIM)
    ROW: tl.constexpr = HEAD_DIM + ROPE_DIM
    held = position < length
    key_scale, value_scale, turned_k = None, None, None
    if CODE is not None:
        key_scale = read_scales(key_scales, region, held, False)
        value_scale = read_scales(value_scales, region, held, EDGE)
    k, odd_k = read_page(
        keys, region, held, query_rows.dtype, HEAD_DIM, PADDED_DIM, ROW, EDGE and ROPE_DIM > 0, DESCRIPTORS, CODE, True
    )
    if ROPE_DIM > 0:
        turned_k, _ = read_page(
            keys + HEAD_DIM, region, held, query_rows.dtype, ROPE_DIM, PADDED_ROPE, ROW, False, False, None, True
        )
    scores = page_scores(query_rows, odd_rows, k, odd_k, turned, turned_k, key_scale, factor, cap, CODE, SOFT_CAPPED)
    if EDGE:
        seen = position[None, :] <= high[:, None]
        if WINDOWED:
            seen &= position[None, :] > (high - window)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
    v, odd_v = k, odd_k
    if ROPE_DIM == 0:
        v, odd_v = read_page(
            values, region, held, query_rows.dtype, HEAD_DIM, PADDED_DIM, ROW, False, DESCRIPTORS, CODE, True
        )
    return absorb(scores, v, odd_v, value_scale, factor, maximum, total, output, odd_output, CODE, SOFT_CAPPED)


@jit(do_not_specialize=("table_width", "sequences", "window"))
def prefill_kernel(
    q, keys, values, key_scales, value_scales, sinks, starts, lengths, tables, out,
    q_stride, table_width, sequences, window, factor, cap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, PADDED_ROPE: tl.constexpr, ROWS: tl.constexpr, WINDOWED: tl.constexpr,
    SOFT_CAPPED: tl.constexpr, CODE: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """keys and values: pointers, or descriptors of [pages * kv heads * PAGE, HEAD_DIM] with blocks of one page."""
    await_inputs()
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TOKENS: tl.constexpr = ROWS // GROUP
    sequence, beyond = 0, sequences
    while beyond - sequence > 1:
        middle = (sequence + beyond) // 2
        if tl.load(starts + middle) // TOKENS + middle <= tile:
            sequence = middle
        else:
            beyond = middle
    begin = tl.load(starts + sequence)
    tokens = tl.load(starts + sequence + 1) - begin
    offset = (tile - (begin // TOKENS + sequence)) * TOKENS
    if (tokens <= 1) | (offset >= tokens):
        return
    length = tl.load(lengths + sequence)
    table = tables + sequence * table_width
    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    token, head = row // GROUP, kv_head * GROUP + row % GROUP
    is_row = ((token < TOKENS) & (offset + token < tokens))[:, None]
    is_query = is_row
    if PADDED_DIM != HEAD_DIM:
        is_query &= (dim < HEAD_DIM)[None, :]
    query = (begin + offset).to(tl.int64)
    at_row = token[:, None] * q_stride + head[:, None] * (HEAD_DIM + ROPE_DIM)
    query_rows = tl.load(q + query * q_stride + (at_row + dim[None, :]), mask=is_query, other=0.0)
    query_rows, odd_rows = operands_of(query_rows, CODE)
    turned = read_turned(q + query * q_stride + HEAD_DIM + at_row, is_row, ROPE_DIM, PADDED_ROPE)
    earliest = length - tokens + offset
    latest = tl.minimum(earliest + TOKENS, length) - 1
    high = earliest + token
    # Pages: [first, inner) have the window's lower end, [inner, outer) are seen whole, [outer, stop) the diagonal.
    first, inner = 0, 0
    stop = latest // PAGE + 1
    if WINDOWED:
        first = tl.maximum(earliest - window + 1, 0) // PAGE
        inner = tl.minimum(tl.cdiv(tl.maximum(latest - window + 1, 0), PAGE), stop)
    outer = tl.maximum((earliest + 1) // PAGE, inner)
    maximum, total = started(sinks, head, head < HEADS, True)
    output, odd_output = started_output(ROWS, PADDED_DIM, CODE)
    bounds = first, inner, outer, stop
    for part in tl.static_range(0 if WINDOWED else 1, 3):
        number = tl.load(table + tl.minimum(bounds[part], stop - 1))
        for page in tl.range(bounds[part], bounds[part + 1]):
            maximum, total, output, odd_output = attend_page(
                query_rows, odd_rows, turned, keys, values, key_scales, value_scales, number, page, kv_head, high,
                window, length, maximum, total, output, odd_output, factor, cap,
                KV_HEADS, HEAD_DIM, PADDED_DIM, ROPE_DIM, PADDED_ROPE, SOFT_CAPPED, CODE, DESCRIPTORS, WINDOWED,
                part != 1,
            )  # fmt: skip
            number = tl.load(table + tl.minimum(page + 1, stop - 1))
    total = tl.where(total > 0, total, 1.0)  # a row of no query may see no key
    output = whole_output(output, odd_output, CODE)
    result = (output / total[:, None]).to(out.dtype.element_ty)
    at_out = (token * HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out + query * (HEADS * HEAD_DIM) + at_out, result, mask=is_query)
