"""The two middle stages of a layer: rotate and cache the new keys and values, then attend.

All keys and values of the step are in the cache before the first query is processed, so a chunk sees its own tokens.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import inlined, inner
from ..paged_attention.cache import BLOCK_TOKENS, store_key, store_value
from ..paged_attention.cpu import attend
from ..paged_attention.query import store_query
from ..paged_attention.softmax import DESCRIPTOR_BYTES, NO_SINK
from ..rope.cpu import rope_head
from ..simd.amx import TILE_ROWS
from ..simd.formats import CacheTag
from ..threads.atomics import peek, poke
from ..threads.shares import MOST_SHARES, NOTHING, Crew, shares_of, take
from .shape import (
    CHUNK,
    FIRST_ROW,
    KEY_NORM,
    KV_HEAD,
    QKV_BIAS,
    QUERY_NORM,
    QUERY_ROTATION,
    ROTATION,
    ROWS,
    SINKS,
    TASKS,
    TOKENS,
    WINDOW,
    Memory,
    Shape,
    Staged,
)

DESCRIPTORS = TILE_ROWS * DESCRIPTOR_BYTES  # at the start of a thread's scratch: no task has more rows


@inner
def rotation_stage(
    cache_tag: CacheTag, crew: Crew, stage: int, layer: int, shape: Shape, memory: Memory, staged: Staged
) -> int:
    """One unit of work is one token and one kv head: its group of queries, its key, its value."""
    stage += 1
    units = staged.job[TOKENS] * shape.kv_heads
    shares, share = shares_of(units, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = units * share // shares, units * (share + 1) // shares
        _rotate(cache_tag, crew.thread, layer, first, last, shape, memory, staged)


@inlined
def _rotate(
    cache_tag: CacheTag, thread: int, layer: int, first: int, last: int, shape: Shape, memory: Memory, staged: Staged
) -> None:
    group = shape.heads // shape.kv_heads
    head_bytes = shape.head_padded * 4
    cache = memory.cache + layer * shape.num_blocks * shape.kv_heads * shape.region_bytes
    scratch = memory.scratch + thread * shape.scratch_stride
    query_factor, one = np.float32(shape.query_factor), np.float32(1)
    weights = memory.weights[layer]
    bias = weights[QKV_BIAS]
    for unit in range(first, last):
        token, kv_head = unit // shape.kv_heads, unit % shape.kv_heads
        row = memory.qkv + token * shape.qkv_padded * 4
        turn = staged.positions[token] * head_bytes
        queries = memory.queries + (kv_head * shape.max_tokens + token) * group * shape.query_bytes
        for member in range(group):
            head = kv_head * group + member
            table = weights[QUERY_ROTATION] + turn
            _finish_head(
                cache_tag, row, bias, weights[QUERY_NORM], head, shape.heads, table, scratch, query_factor, shape
            )
            store_query(cache_tag, scratch, queries + member * shape.query_bytes, shape.head_padded)
        slot = staged.slots[token]
        region = cache + (slot // BLOCK_TOKENS * shape.kv_heads + kv_head) * shape.region_bytes
        keys = shape.heads * head_bytes
        table = weights[ROTATION] + turn
        _finish_head(
            cache_tag, row + keys, bias + keys, weights[KEY_NORM], kv_head, shape.kv_heads, table, scratch, one, shape
        )
        store_key(cache_tag, scratch, region, slot % BLOCK_TOKENS, shape.head_padded)
        offset = keys + (shape.kv_heads + kv_head) * head_bytes
        store_value(cache_tag, row + offset, bias + offset, region, slot % BLOCK_TOKENS, shape.head_padded)


@inlined
def _finish_head(
    cache_tag: CacheTag,
    row: int,
    bias: int,
    gains: int,
    head: int,
    heads: int,
    table: int,
    out: int,
    factor: np.float32,
    shape: Shape,
) -> None:
    """Of the `heads` heads at `row`, write the one with this number to `out`: with its bias, normalised, rotated."""
    offset = head * shape.head_padded * 4
    x, x_bias = row + offset, bias + offset
    over, over_bias, count = (row, bias, heads) if shape.qk_norm == 2 else (x, x_bias, min(shape.qk_norm, 1))
    rope_head(
        cache_tag,
        x,
        x_bias,
        gains + offset,
        over,
        over_bias,
        count * shape.head_padded // 16,
        table,
        shape.head_padded // 2,
        out,
        shape.centred,
        np.float32(max(count, 1) * shape.head_dim),
        np.float32(shape.eps),
        factor,
    )


@inner
def attention_stage(
    cache_tag: CacheTag, crew: Crew, stage: int, layer: int, out: int, shape: Shape, memory: Memory, staged: Staged
) -> int:
    """The result goes to `out`, [tokens][heads][head_padded] float32.

    Tasks are uneven, as a late tile of a long chunk sees more blocks: nearly always a share is one task.
    """
    stage += 1
    tasks = staged.job[TASKS]
    shares, share = min(tasks, MOST_SHARES), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for task in range(tasks * share // shares, tasks * (share + 1) // shares):
            _attend(cache_tag, crew.thread, layer, out, task, tasks, shape, memory, staged)


@inlined
def _attend(
    cache_tag: CacheTag,
    thread: int,
    layer: int,
    out: int,
    task: int,
    tasks: int,
    shape: Shape,
    memory: Memory,
    staged: Staged,
) -> None:
    """One task. During its last block it prefetches the first of the following task, which is likely the thread's."""
    group = shape.heads // shape.kv_heads
    block_stride = shape.kv_heads * shape.region_bytes
    cache = memory.cache + layer * shape.num_blocks * block_stride
    scratch = memory.scratch + thread * shape.scratch_stride
    window, sinks = memory.weights[layer, WINDOW], memory.weights[layer, SINKS]
    chunk, kv_head = staged.tasks[task, CHUNK], staged.tasks[task, KV_HEAD]
    first_row, rows = staged.tasks[task, FIRST_ROW], staged.tasks[task, ROWS]
    start = staged.starts[chunk]
    for index in range(rows):
        token = start + (first_row + index) // group
        head = kv_head * group + (first_row + index) % group
        position = staged.positions[token]
        descriptor = scratch + index * DESCRIPTOR_BYTES
        poke(descriptor, out + (token * shape.heads + head) * shape.head_padded * 4)
        poke(descriptor + 8, max(0, position - window + 1))
        poke(descriptor + 16, position)
        poke(descriptor + 24, NO_SINK if sinks == 0 else peek(sinks + head * 8))
    oldest = _oldest_block(task, window, shape, staged)
    newest = staged.positions[start + (first_row + rows - 1) // group]
    ahead = task + 1 if task + 1 < tasks else task
    ahead_chunk, ahead_head = staged.tasks[ahead, CHUNK], staged.tasks[ahead, KV_HEAD]
    ahead_oldest = _oldest_block(ahead, window, shape, staged)
    ahead_block = staged.tables[ahead_chunk, ahead_oldest]
    ahead_row = staged.tasks[ahead, FIRST_ROW] + staged.tasks[ahead, ROWS] - 1
    ahead_newest = staged.positions[staged.starts[ahead_chunk] + ahead_row // group]
    ahead_seen = ahead_newest + 1 - ahead_oldest * BLOCK_TOKENS
    queries = memory.queries + ((kv_head * shape.max_tokens + start) * group + first_row) * shape.query_bytes
    attend(
        cache_tag,
        rows,
        queries,
        shape.query_bytes,
        scratch,
        staged.tables[chunk].ctypes.data,
        oldest,
        newest // BLOCK_TOKENS + 1 - oldest,
        newest + 1,
        cache + kv_head * shape.region_bytes,
        block_stride,
        cache + ahead_block * block_stride + ahead_head * shape.region_bytes,
        ahead_seen,
        scratch + DESCRIPTORS,
        shape.head_padded,
        np.float32(shape.score_cap),
    )


@inlined
def _oldest_block(task: int, window: int, shape: Shape, staged: Staged) -> int:
    """The first block of the sequence that a task's first row sees."""
    group = shape.heads // shape.kv_heads
    first = staged.starts[staged.tasks[task, CHUNK]] + staged.tasks[task, FIRST_ROW] // group
    return int(max(0, staged.positions[first] - window + 1)) // BLOCK_TOKENS
