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
from ..simd.formats import CacheTag
from ..threads.atomics import atomic_add, peek, poke
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

DESCRIPTORS = 256  # bytes for descriptors at the start of a thread's scratch


@inner
def rotation_stage(
    cache_tag: CacheTag, thread: int, threads: int, layer: int, shape: Shape, memory: Memory, staged: Staged
) -> None:
    """One unit of work is one token and one kv head: its group of queries, its key, its value."""
    group = shape.heads // shape.kv_heads
    head_bytes = shape.head_padded * 4
    cache = memory.cache + layer * shape.num_blocks * shape.kv_heads * shape.region_bytes
    scratch = memory.scratch + thread * shape.scratch_stride
    query_factor, one = np.float32(shape.query_factor), np.float32(1)
    weights = memory.weights[layer]
    bias = weights[QKV_BIAS]
    units = staged.job[TOKENS] * shape.kv_heads
    for unit in range(units * thread // threads, units * (thread + 1) // threads):
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
    cache_tag: CacheTag, thread: int, threads: int, layer: int, out: int, shape: Shape, memory: Memory, staged: Staged
) -> None:
    """The result goes to `out`, [tokens][heads][head_padded] float32.

    Tasks are uneven (a late tile of a long chunk sees more blocks), so threads take them from a counter.

    During the last block of a task a thread prefetches the first block of its next one, so it takes its next task
    before it begins one. Near the end this could leave another thread without work; there it only guesses the next.
    """
    group = shape.heads // shape.kv_heads
    block_stride = shape.kv_heads * shape.region_bytes
    cache = memory.cache + layer * shape.num_blocks * block_stride
    scratch = memory.scratch + thread * shape.scratch_stride
    counter = memory.counters + layer * 64
    tasks = staged.job[TASKS]
    window, sinks = memory.weights[layer, WINDOW], memory.weights[layer, SINKS]
    task = atomic_add(counter, 1)
    while task < tasks:
        taken = task + 2 * threads < tasks
        following = atomic_add(counter, 1) if taken else task + threads
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
        ahead = following if following < tasks else task
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
        task = following if taken else atomic_add(counter, 1)


@inlined
def _oldest_block(task: int, window: int, shape: Shape, staged: Staged) -> int:
    """The first block of the sequence that a task's first row sees."""
    group = shape.heads // shape.kv_heads
    first = staged.starts[staged.tasks[task, CHUNK]] + staged.tasks[task, FIRST_ROW] // group
    return int(max(0, staged.positions[first] - window + 1)) // BLOCK_TOKENS
