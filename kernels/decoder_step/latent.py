"""Latent attention of a layer, between its first projection and the output projection, as a part of the compiled step.

With c a token's latent vector, a head's key is K c and its value V c. So q . (K c) = (K^T q) . c, and the weighted sum
of values is V times that of latent vectors: K and V of each head are applied to the queries and to the result instead
of to every cached token, and attention sees one kv head, whose keys and values are the cached rows.

    queries from their latent vector (if they have one); K^T q of each head; norm, rotation and cache write; attention;
    V of each head
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import inlined, inner
from ..gemm.cpu import gemm, panel_layout
from ..gemm.tile import PANEL
from ..paged_attention.cache import BLOCK_TOKENS, store_row
from ..quantise.cpu import plain_row
from ..rms_norm.cpu import norm_row
from ..rope.cpu import rope_head
from ..simd.formats import CacheTag, Tag
from ..threads.shares import NOTHING, Crew, shares_of, take
from .attention import attention_stage
from .latent_shape import KEYS, NORM, QUERY, QUERY_NORM, VALUES, Latent
from .projection import project
from .shape import NEW, QUERY_ROTATION, ROTATION, TOKENS, Memory, Shape, Staged

ALONE = 1  # parts of a product that is a share


@inner
def latent_attention(
    tag: Tag,
    crew: Crew,
    stage: int,
    layer: int,
    shape: Shape,
    memory: Memory,
    latent: Latent,
    staged: Staged,
) -> int:
    """From memory.qkv to memory.attention."""
    tokens, head_bytes, cache_tag = staged.job[TOKENS], shape.head_padded * 4, latent.cache_tag
    queries, query_stride = memory.qkv + latent.query_offset * 4, shape.qkv_padded * 4
    if latent.query_rank != 0:
        stage = _query_inputs(tag, crew, stage, layer, tokens, shape, memory, latent)
        weights, scales = latent.table[layer, QUERY], latent.table[layer, QUERY + 1]
        queries, query_stride = latent.heads, latent.queries_padded * 4
        stage = project(
            tag,
            crew,
            stage,
            shape,
            memory,
            tokens,
            latent.query_padded,
            latent.queries_padded,
            query_stride,
            weights,
            scales,
            queries,
            int(NEW),
        )
    stride = (latent.plain_padded + latent.rope_padded) * 4
    stage = head_inputs(
        tag, crew, stage, latent.plain_padded, queries, stride, query_stride, shape, memory, latent, staged
    )
    keys, all_heads = int(KEYS), shape.heads * head_bytes
    stage = head_products(
        tag,
        crew,
        stage,
        latent.table[layer, keys],
        latent.table[layer, keys + 1],
        latent.plain_padded,
        latent.kv_padded,
        latent.mixed,
        head_bytes,
        all_heads,
        shape,
        latent,
        staged,
    )
    stage = _row_stage(cache_tag, crew, stage, layer, queries, query_stride, shape, memory, latent, staged)
    stage = attention_stage(cache_tag, crew, stage, layer, latent.mixed, shape, memory, staged)
    stage = head_inputs(
        tag, crew, stage, latent.kv_padded, latent.mixed, head_bytes, all_heads, shape, memory, latent, staged
    )
    values, value_bytes = int(VALUES), latent.value_padded * 4
    return head_products(
        tag,
        crew,
        stage,
        latent.table[layer, values],
        latent.table[layer, values + 1],
        latent.kv_padded,
        latent.value_padded,
        memory.attention,
        value_bytes,
        shape.attention_padded * 4,
        shape,
        latent,
        staged,
    )


@inlined
def _query_inputs(
    tag: Tag, crew: Crew, stage: int, layer: int, tokens: int, shape: Shape, memory: Memory, latent: Latent
) -> int:
    """The queries' latent vectors through their norm, as GEMM input; of a single row every thread has its copy."""
    if tokens == 1:
        _query_input(tag, crew.thread, layer, tokens - 1, crew.thread, shape, memory, latent)
        return stage
    stage += 1
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            _query_input(tag, crew.thread, layer, row, crew.threads + row, shape, memory, latent)


@inner
def _query_input(
    tag: Tag, thread: int, layer: int, row: int, place: int, shape: Shape, memory: Memory, latent: Latent
) -> None:
    norm_row(
        tag,
        memory.qkv + (row * shape.qkv_padded + latent.query_offset) * 4,
        latent.table[layer, QUERY_NORM],
        latent.zeros,
        latent.query_padded,
        memory.activations + place * shape.activation_stride,
        memory.scratch + thread * shape.scratch_stride,
        0,
        np.float32(latent.query_rank),
        np.float32(latent.eps),
    )


@inner
def head_inputs(
    tag: Tag,
    crew: Crew,
    stage: int,
    k: int,
    source: int,
    head_stride: int,
    row_stride: int,
    shape: Shape,
    memory: Memory,
    latent: Latent,
    staged: Staged,
) -> int:
    """The first k values of each head of each row as GEMM input. Strides are in bytes."""
    stage += 1
    scratch = memory.scratch + crew.thread * shape.scratch_stride
    units = staged.job[TOKENS] * shape.heads
    shares, share = shares_of(units, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for unit in range(units * share // shares, units * (share + 1) // shares):
            row, head = unit // shape.heads, unit % shape.heads
            x = source + row * row_stride + head * head_stride
            plain_row(tag, x, k, latent.inputs + (head * latent.input_rows + row) * latent.input_stride, scratch)


@inner
def head_products(
    tag: Tag,
    crew: Crew,
    stage: int,
    weights: int,
    scales: int,
    k: int,
    channels: int,
    out: int,
    head_stride: int,
    row_stride: int,
    shape: Shape,
    latent: Latent,
    staged: Staged,
) -> int:
    """Each head's input times its own matrix. The panels of all heads are one list, cut into equal shares."""
    stage += 1
    panel_bytes, scale_bytes, _ = panel_layout(tag, k, shape.group_shift)
    panels, first_part, alone = channels // PANEL, int(NEW), int(ALONE)
    units = shape.heads * panels
    shares, share = shares_of(units, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        unit, last = units * share // shares, units * (share + 1) // shares
        while unit < last:
            head, panel = unit // panels, unit % panels
            count = min(panels - panel, last - unit)
            gemm(
                tag,
                first_part,
                alone,
                first_part,
                staged.job[TOKENS],
                k,
                latent.inputs + head * latent.input_rows * latent.input_stride,
                latent.input_stride,
                weights + unit * panel_bytes,
                scales + unit * scale_bytes,
                shape.group_shift,
                count * PANEL,
                out + head * head_stride + panel * PANEL * 4,
                row_stride,
            )
            unit += count


@inner
def _row_stage(
    cache_tag: CacheTag,
    crew: Crew,
    stage: int,
    layer: int,
    queries: int,
    query_stride: int,
    shape: Shape,
    memory: Memory,
    latent: Latent,
    staged: Staged,
) -> int:
    """One unit of work is one token and head: its query; of the first head also the token's row for the cache."""
    stage += 1
    units = staged.job[TOKENS] * shape.heads
    shares, share = shares_of(units, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = units * share // shares, units * (share + 1) // shares
        _rows(cache_tag, crew.thread, layer, first, last, queries, query_stride, shape, memory, latent, staged)


@inlined
def _rows(
    cache_tag: CacheTag,
    thread: int,
    layer: int,
    first: int,
    last: int,
    queries: int,
    query_stride: int,
    shape: Shape,
    memory: Memory,
    latent: Latent,
    staged: Staged,
) -> None:
    cache = memory.cache + layer * shape.num_blocks * shape.region_bytes
    scratch = memory.scratch + thread * shape.scratch_stride
    factor, one = np.float32(shape.query_factor), np.float32(1)
    weights, norm = memory.weights[layer], latent.table[layer, NORM]
    kv_bytes, rope_bytes = latent.kv_padded * 4, latent.rope_padded * 4
    head_bytes = latent.plain_padded * 4 + rope_bytes
    for unit in range(first, last):
        token, head = unit // shape.heads, unit % shape.heads
        turn = staged.positions[token] * rope_bytes
        to = memory.queries + unit * shape.query_bytes
        _part(cache_tag, latent.mixed + unit * shape.head_padded * 4, latent, kv_bytes, latent.still, to, factor)
        turned = queries + token * query_stride + head * head_bytes + latent.plain_padded * 4
        _part(cache_tag, turned, latent, rope_bytes, weights[QUERY_ROTATION] + turn, to + kv_bytes, factor)
        if head == 0:
            row, slot = memory.qkv + token * shape.qkv_padded * 4, staged.slots[token]
            rope_head(
                cache_tag,
                row,
                latent.zeros,
                norm,
                row,
                latent.zeros,
                latent.kv_padded // 16,
                latent.still,
                latent.kv_padded // 2,
                scratch,
                0,
                np.float32(latent.kv_rank),
                np.float32(latent.eps),
                one,
            )
            _part(cache_tag, row + kv_bytes, latent, rope_bytes, weights[ROTATION] + turn, scratch + kv_bytes, one)
            region = cache + slot // BLOCK_TOKENS * shape.region_bytes
            store_row(cache_tag, scratch, region, slot % BLOCK_TOKENS, shape.head_padded)


@inlined
def _part(cache_tag: CacheTag, x: int, latent: Latent, size: int, table: int, out: int, factor: np.float32) -> None:
    """Rotate `size` bytes and multiply them; no norm, no bias."""
    zeros, ones, one = latent.zeros, latent.ones, np.float32(1)
    rope_head(cache_tag, x, zeros, ones, x, zeros, 0, table, size // 8, out, 0, one, one, factor)
