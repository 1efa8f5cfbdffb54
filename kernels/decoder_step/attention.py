"""The two middle stages of a layer: rotate and cache the new keys and values, then attend.

All keys and values of the step are in the cache before the first query is answered, so a chunk sees its own tokens.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import compiled
from ..paged_attention.cache import BLOCK_TOKENS, store_key, store_value
from ..paged_attention.cpu import attend
from ..paged_attention.tile import DESCRIPTOR_BYTES
from ..rope.cpu import rope_head
from ..simd.formats import Tag
from ..threads.atomics import atomic_add, poke
from .shape import (
    CHUNK,
    FIRST_ROW,
    KEY_NORM,
    KV_HEAD,
    QKV_BIAS,
    QUERY_NORM,
    ROWS,
    TASKS,
    TOKENS,
    Memory,
    Shape,
    Staged,
)

DESCRIPTORS = 256  # bytes for them at the start of a thread's scratch


@compiled
def rotation_stage(
    tag: Tag, thread: int, threads: int, layer: int, shape: Shape, memory: Memory, staged: Staged
) -> None:
    """A unit is one token and one kv head: its group of queries, its key, its value."""
    group = shape.heads // shape.kv_heads
    half, head_bytes = shape.head_padded // 2, shape.head_padded * 4
    region_bytes = 2 * BLOCK_TOKENS * shape.head_padded * shape.cache_bytes
    cache = memory.cache + layer * shape.num_blocks * shape.kv_heads * region_bytes
    scratch = memory.scratch + thread * shape.scratch_stride
    size, eps = np.float32(shape.head_dim), np.float32(shape.eps)
    query_factor, one = np.float32(shape.query_factor), np.float32(1)
    bias = memory.weights[layer, QKV_BIAS]
    query_norm, key_norm = memory.weights[layer, QUERY_NORM], memory.weights[layer, KEY_NORM]
    units = staged.job[TOKENS] * shape.kv_heads
    for unit in range(units * thread // threads, units * (thread + 1) // threads):
        token, kv_head = unit // shape.kv_heads, unit % shape.kv_heads
        row = memory.qkv + token * shape.qkv_padded * 4
        rotation = memory.rotation + staged.positions[token] * head_bytes
        queries = memory.queries + (kv_head * shape.max_tokens + token) * group * shape.head_padded * shape.cache_bytes
        for member in range(group):
            offset = (kv_head * group + member) * head_bytes
            rope_head(tag, row + offset, bias + offset, query_norm, shape.qk_norm, rotation, half,
                      queries + member * shape.head_padded * shape.cache_bytes, size, eps, query_factor)
        slot = staged.slots[token]
        region = cache + (slot // BLOCK_TOKENS * shape.kv_heads + kv_head) * region_bytes
        offset = (shape.heads + kv_head) * head_bytes
        rope_head(tag, row + offset, bias + offset, key_norm, shape.qk_norm, rotation, half, scratch, size, eps, one)
        store_key(tag, scratch, region, slot % BLOCK_TOKENS, shape.head_padded)
        offset += shape.kv_heads * head_bytes
        store_value(tag, row + offset, bias + offset, region, slot % BLOCK_TOKENS, shape.head_padded)


@compiled
def attention_stage(tag: Tag, layer: int, scratch: int, shape: Shape, memory: Memory, staged: Staged) -> None:
    """Tasks are uneven (a late tile of a long chunk sees more blocks), so threads take them from a counter."""
    group = shape.heads // shape.kv_heads
    region_bytes = 2 * BLOCK_TOKENS * shape.head_padded * shape.cache_bytes
    block_stride = shape.kv_heads * region_bytes
    cache = memory.cache + layer * shape.num_blocks * block_stride
    row_bytes = shape.head_padded * shape.cache_bytes
    counter = memory.counters + layer * 64
    tasks = staged.job[TASKS]
    task = atomic_add(counter, 1)
    while task < tasks:
        chunk, kv_head = staged.tasks[task, CHUNK], staged.tasks[task, KV_HEAD]
        first_row, rows = staged.tasks[task, FIRST_ROW], staged.tasks[task, ROWS]
        start = staged.starts[chunk]
        for index in range(rows):
            token = start + (first_row + index) // group
            head = kv_head * group + (first_row + index) % group
            position = staged.positions[token]
            descriptor = scratch + index * DESCRIPTOR_BYTES
            poke(descriptor, memory.attention + (token * shape.heads + head) * shape.head_padded * 4)
            poke(descriptor + 8, max(0, position - shape.window + 1))
            poke(descriptor + 16, position)
        oldest = max(0, staged.positions[start + first_row // group] - shape.window + 1) // BLOCK_TOKENS
        newest = staged.positions[start + (first_row + rows - 1) // group]
        queries = memory.queries + ((kv_head * shape.max_tokens + start) * group + first_row) * row_bytes
        attend(tag, rows, queries, row_bytes, scratch, staged.tables[chunk].ctypes.data, oldest,
               newest // BLOCK_TOKENS + 1 - oldest, newest + 1, cache + kv_head * region_bytes, block_stride,
               scratch + DESCRIPTORS, shape.head_padded)
        task = atomic_add(counter, 1)
