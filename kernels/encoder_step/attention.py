"""The two middle stages of a layer: rotate queries and keys and lay them out, then attend to both sides.

Keys and values are laid out as in the decoder's cache, a text from the start of a block on, but only for the layer at
hand: the next layer writes them anew. So an encoder keeps nothing between steps.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import inlined, inner
from ..decoder_step.attention import DESCRIPTORS
from ..paged_attention.cache import BLOCK_TOKENS, store_key, store_value
from ..paged_attention.cpu import attend
from ..paged_attention.query import store_query
from ..paged_attention.softmax import DESCRIPTOR_BYTES, NO_SINK
from ..paged_attention.tile import MOST_ROWS
from ..rope.cpu import rope_head
from ..simd.formats import CacheTag
from ..threads.atomics import poke
from ..threads.shares import MOST_SHARES, NOTHING, Crew, shares_of, take
from .shape import (
    QKV_BIAS,
    REACH,
    ROTATION,
    TASK_HEAD,
    TASK_LENGTH,
    TASK_START,
    TASK_TOKEN,
    TASK_TOKENS,
    TASKS,
    TOKENS,
    EncoderAddresses,
    EncoderShape,
    StagedTexts,
)


@inner
def layout_stage(
    cache_tag: CacheTag,
    crew: Crew,
    stage: int,
    layer: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> int:
    """Each token's heads: query and key with their biases, rotated; key and value to the token's slot."""
    stage += 1
    tokens = staged.job[TOKENS]
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = tokens * share // shares, tokens * (share + 1) // shares
        _lay_out(cache_tag, crew.thread, layer, first, last, shape, memory, staged)


@inlined
def _lay_out(
    cache_tag: CacheTag,
    thread: int,
    layer: int,
    first: int,
    last: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> None:
    half, head_bytes = shape.head_padded // 2, shape.head_padded * 4
    scratch = memory.scratch + thread * shape.scratch_stride
    size, eps = np.float32(shape.head_dim), np.float32(shape.eps)
    query_factor, one = np.float32(shape.query_factor), np.float32(1)
    bias, ones = memory.weights[layer, QKV_BIAS], memory.ones
    key_offset, value_offset = shape.heads * head_bytes, 2 * shape.heads * head_bytes
    for token in range(first, last):
        rotation = memory.weights[layer, ROTATION] + staged.positions[token] * shape.rotation_stride
        slot = staged.slots[token]
        for head in range(shape.heads):
            offset = head * head_bytes
            row = memory.qkv + token * shape.qkv_padded * 4 + offset
            region = memory.cache + (slot // BLOCK_TOKENS * shape.heads + head) * shape.region_bytes
            query_bias = bias + offset
            rope_head(
                cache_tag,
                row,
                query_bias,
                ones,
                row,
                query_bias,
                0,
                rotation,
                half,
                scratch,
                0,
                size,
                eps,
                query_factor,
            )
            query = memory.queries + (head * shape.max_tokens + token) * shape.query_bytes
            store_query(cache_tag, scratch, query, shape.head_padded)
            key_row, key_bias = row + key_offset, bias + offset + key_offset
            rope_head(
                cache_tag, key_row, key_bias, ones, key_row, key_bias, 0, rotation, half, scratch, 0, size, eps, one
            )
            store_key(cache_tag, scratch, region, slot % BLOCK_TOKENS, shape.head_padded)
            value_row, value_bias = row + value_offset, bias + offset + value_offset
            store_value(cache_tag, value_row, value_bias, region, slot % BLOCK_TOKENS, shape.head_padded)


@inner
def both_sides_stage(
    cache_tag: CacheTag,
    crew: Crew,
    stage: int,
    layer: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> int:
    """Every token attends to those of its text within the layer's reach; nearly always a share is one task."""
    stage += 1
    tasks = staged.job[TASKS]
    shares, share = min(tasks, MOST_SHARES), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for task in range(tasks * share // shares, tasks * (share + 1) // shares):
            _attend(cache_tag, crew.thread, layer, task, shape, memory, staged)


@inlined
def _attend(
    cache_tag: CacheTag,
    thread: int,
    layer: int,
    task: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> None:
    block_stride = shape.heads * shape.region_bytes
    scratch = memory.scratch + thread * shape.scratch_stride
    reach = memory.weights[layer, REACH]
    head = staged.tasks[task, TASK_HEAD]
    first, count = staged.tasks[task, TASK_TOKEN], staged.tasks[task, TASK_TOKENS]
    start, last_key = staged.tasks[task, TASK_START], staged.tasks[task, TASK_LENGTH] - 1
    cache = memory.cache + head * shape.region_bytes
    table = memory.blocks + staged.slots[start] // BLOCK_TOKENS * 4
    tiles = (count + MOST_ROWS - 1) // MOST_ROWS
    for tile in range(tiles):
        token = first + count * tile // tiles
        rows = first + count * (tile + 1) // tiles - token
        for index in range(rows):
            position = staged.positions[token + index]
            descriptor = scratch + index * DESCRIPTOR_BYTES
            output = (token + index) * shape.attention_padded + head * shape.head_padded
            poke(descriptor, memory.attention + output * 4)
            poke(descriptor + 8, max(0, position - reach))
            poke(descriptor + 16, min(last_key, position + reach))
            poke(descriptor + 24, NO_SINK)
        oldest = max(0, staged.positions[token] - reach) // BLOCK_TOKENS
        newest = min(last_key, staged.positions[token] + rows - 1 + reach)
        attend(
            cache_tag,
            rows,
            memory.queries + (head * shape.max_tokens + token) * shape.query_bytes,
            shape.query_bytes,
            scratch,
            table,
            oldest,
            newest // BLOCK_TOKENS + 1 - oldest,
            newest + 1,
            cache,
            block_stride,
            cache,  # nothing is worth prefetching: this layer has just written it all
            0,
            scratch + DESCRIPTORS,
            shape.head_padded,
            np.float32(0),  # scores have no cap
        )
