"""Paged attention of decode rows (one query token each): split over the cache, and reduced in a fixed order.

Grid (programs, kv heads), static: what each program reads is in the plan (gpu_plan.py). Bound by memory: every page
of keys and values is read once, by one program.
"""

from ..gpu.arrival import is_last
from ..gpu.language import await_inputs, jit, tl
from .gpu_plan import HEADER, RECORD, parts_of, split_pages
from .gpu_reduce import reduce_row
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


@jit(do_not_specialize=("table_width", "sequences", "window"))
def decode_kernel(
    q, keys, values, key_scales, value_scales, sinks, starts, lengths, tables, plan, partials, maxima, totals, out,
    q_stride, table_width, sequences, window, factor, cap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, PADDED_ROPE: tl.constexpr, ROWS: tl.constexpr, WINDOWED: tl.constexpr,
    SOFT_CAPPED: tl.constexpr, CODE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    STRICT: tl.constexpr, SPLITS: tl.constexpr, LEAST_SHARE: tl.constexpr, GROUP_ROWS: tl.constexpr,
    PARTS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """keys and values: pointers, or descriptors of [pages * kv heads * PAGE, HEAD_DIM] with blocks of one page."""
    await_inputs()
    program, kv_head = tl.program_id(0), tl.program_id(1)
    share, listed = tl.load(plan), tl.load(plan + 1)
    page = program * share
    end = tl.minimum(page + share, listed)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    ROW: tl.constexpr = HEAD_DIM + ROPE_DIM
    group, dim, token = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM), tl.arange(0, PAGE)
    is_query = (group < GROUP)[:, None]
    if PADDED_DIM != HEAD_DIM:
        is_query &= (dim < HEAD_DIM)[None, :]
    head = kv_head * GROUP + group
    row = 0
    if page < end:
        row = tl.load(plan + HEADER + RECORD * sequences + program)
        if STRICT:  # this program's first part is the first that begins here
            record = plan + HEADER + RECORD * row
            first, pages = tl.load(record + 1), tl.load(record + 2)
            split = split_pages(pages, SPLITS, LEAST_SHARE)
            begin = tl.cdiv(page - first, split) * split
            page = first + tl.minimum(begin, pages)
            row += (begin >= pages).to(tl.int32)
    while page < end:
        record = plan + HEADER + RECORD * row
        sequence, first, pages = tl.load(record), tl.load(record + 1), tl.load(record + 2)
        slot, parts = parts_of(row, first, pages, share, STRICT, SPLITS, LEAST_SHARE)
        begin = page - first
        if STRICT:
            split = split_pages(pages, SPLITS, LEAST_SHARE)
            stop = tl.minimum(begin + split, pages)
            slot += begin // split
        else:
            stop = tl.minimum(end - first, pages)
            slot = row + program
        length = tl.load(lengths + sequence)
        lowest = 0
        if WINDOWED:
            lowest = tl.maximum(length - window, 0)
        skipped = lowest // PAGE
        table = tables + sequence * table_width + skipped
        query = tl.load(starts + sequence).to(tl.int64)
        at_head = q + query * q_stride + head[:, None] * ROW
        query_row = tl.load(at_head + dim[None, :], mask=is_query, other=0.0)
        query_row, odd_row = operands_of(query_row, CODE)
        turned = read_turned(at_head + HEAD_DIM, (group < GROUP)[:, None], ROPE_DIM, PADDED_ROPE)
        maximum, total = started(sinks, head, group < GROUP, begin == 0)
        output, odd_output = started_output(ROWS, PADDED_DIM, CODE)
        number = tl.load(table + begin)
        for index in tl.range(begin, stop):
            position = (skipped + index) * PAGE + token
            seen = position < length
            region = region_of(number, kv_head, KV_HEADS, ROPE_DIM)
            key_scale, value_scale, turned_k = None, None, None
            if CODE is not None:
                key_scale = read_scales(key_scales, region, seen, False)
                value_scale = read_scales(value_scales, region, seen, True)
            k, odd_k = read_page(
                keys, region, seen, query_row.dtype, HEAD_DIM, PADDED_DIM, ROW, ROPE_DIM > 0, DESCRIPTORS, CODE, False
            )
            if ROPE_DIM > 0:
                turned_k, _ = read_page(
                    keys + HEAD_DIM, region, seen, query_row.dtype, ROPE_DIM, PADDED_ROPE, ROW, False, False, None,
                    False,
                )  # fmt: skip
            scores = page_scores(
                query_row, odd_row, k, odd_k, turned, turned_k, key_scale, factor, cap, CODE, SOFT_CAPPED
            )
            if WINDOWED:
                scores = tl.where((seen & (position >= lowest))[None, :], scores, float("-inf"))
            else:
                scores = tl.where(seen[None, :], scores, float("-inf"))
            v, odd_v = k, odd_k
            if ROPE_DIM == 0:
                v, odd_v = read_page(
                    values, region, seen, query_row.dtype, HEAD_DIM, PADDED_DIM, ROW, False, DESCRIPTORS, CODE, False
                )
            maximum, total, output, odd_output = absorb(
                scores, v, odd_v, value_scale, factor, maximum, total, output, odd_output, CODE, SOFT_CAPPED
            )
            number = tl.load(table + tl.minimum(index + 1, stop - 1))
        output = whole_output(output, odd_output, CODE)
        if parts == 1:
            result = (output / total[:, None]).to(out.dtype.element_ty)
            tl.store(out + (query * HEADS + head[:, None]) * HEAD_DIM + dim[None, :], result, mask=is_query)
        else:
            place = slot * HEADS + head
            tl.store(partials + place[:, None] * HEAD_DIM + dim[None, :], output, mask=is_query)
            tl.store(maxima + place, maximum, mask=group < GROUP)
            tl.store(totals + place, total, mask=group < GROUP)
            counter = plan + HEADER + RECORD * sequences + tl.num_programs(0) + kv_head * sequences + row
            if is_last(counter, parts):
                first_slot, _ = parts_of(row, first, pages, share, STRICT, SPLITS, LEAST_SHARE)
                reduce_row(
                    partials, maxima, totals, out, first_slot, parts, kv_head, query,
                    HEADS, KV_HEADS, HEAD_DIM, PADDED_DIM, GROUP_ROWS, PARTS_AT_ONCE,
                )  # fmt: skip
        page = first + stop
        row += (stop == pages).to(tl.int32)
