"""Prepares a batch: checks it, copies it, finds each token's cache slot, and cuts the attention into tasks.

The check guards raw memory: everything that the step uses as an index is compared with its bound here.
"""

from __future__ import annotations

from ..compile_cache import compiled, inlined
from ..gemm.tile import MOST_ROWS as TILE_ROWS
from ..paged_attention.cache import BLOCK_TOKENS
from .shape import (
    CHUNK,
    FIRST_ROW,
    KV_HEAD,
    LOGIT_ROWS,
    LOW_RANK_TASKS,
    ROWS,
    TASK_ADAPTER,
    TASK_ROW,
    TASK_ROWS,
    TASKS,
    TOKENS,
    Int32Array,
    Int64Array,
    Shape,
    Staged,
)

OK, BAD_STARTS, BAD_TOKEN, BAD_POSITION, BAD_BLOCK, BAD_LOGIT_ROW = range(6)


@compiled
def stage_batch(
    shape: Shape,
    staged: Staged,
    tokens: Int32Array,
    positions: Int32Array,
    starts: Int32Array,
    tables: Int32Array,
    logit_rows: Int32Array,
) -> tuple[int, int]:
    """(OK, 0), or what is wrong and at which index. The caller checks the sizes of the arrays."""
    count = tokens.shape[0]
    chunks = starts.shape[0] - 1
    if starts[0] != 0 or starts[chunks] != count:
        return BAD_STARTS, 0
    for chunk in range(chunks):
        if starts[chunk + 1] <= starts[chunk]:
            return BAD_STARTS, chunk
    for row in range(logit_rows.shape[0]):
        if logit_rows[row] < 0 or logit_rows[row] >= count:
            return BAD_LOGIT_ROW, row
        staged.logit_rows[row] = logit_rows[row]
    for chunk in range(chunks):
        first = starts[chunk]
        staged.starts[chunk] = first
        for token in range(first, starts[chunk + 1]):
            position = positions[token]
            if tokens[token] < 0 or tokens[token] >= shape.vocab_size:
                return BAD_TOKEN, token
            in_order = token == first or position == positions[token - 1] + 1
            if position < 0 or position >= shape.max_length or not in_order:
                return BAD_POSITION, token
            if position // BLOCK_TOKENS >= tables.shape[1]:
                return BAD_BLOCK, chunk
            block = tables[chunk, position // BLOCK_TOKENS]
            if block < 0 or block >= shape.num_blocks:
                return BAD_BLOCK, chunk
            staged.tokens[token] = tokens[token]
            staged.positions[token] = position
            staged.slots[token] = block * BLOCK_TOKENS + position % BLOCK_TOKENS
        oldest = max(0, positions[first] - shape.window + 1) // BLOCK_TOKENS
        for index in range(oldest, positions[starts[chunk + 1] - 1] // BLOCK_TOKENS + 1):
            block = tables[chunk, index]
            if block < 0 or block >= shape.num_blocks:
                return BAD_BLOCK, chunk
            staged.tables[chunk, index] = block
    staged.starts[chunks] = count
    staged.job[TOKENS] = count
    staged.job[LOGIT_ROWS] = logit_rows.shape[0]
    staged.job[TASKS] = _cut_attention(shape, staged, chunks)
    staged.job[LOW_RANK_TASKS] = 0
    return OK, 0


@compiled
def stage_adapters(staged: Staged, adapters: Int64Array) -> None:
    """After `stage_batch`: the address of each chunk's adapter, 0 for none. Neighbours of one adapter share tasks."""
    chunks, tasks, chunk = adapters.shape[0], 0, 0
    while chunk < chunks:
        following = chunk + 1
        while following < chunks and adapters[following] == adapters[chunk]:
            following += 1
        row, end = staged.starts[chunk], staged.starts[following]
        while adapters[chunk] != 0 and row < end:
            staged.low_rank_tasks[tasks, TASK_ROW] = row
            staged.low_rank_tasks[tasks, TASK_ROWS] = min(TILE_ROWS, end - row)
            staged.low_rank_tasks[tasks, TASK_ADAPTER] = adapters[chunk]
            tasks += 1
            row += TILE_ROWS
        chunk = following
    staged.job[LOW_RANK_TASKS] = tasks


@inlined
def _cut_attention(shape: Shape, staged: Staged, chunks: int) -> int:
    """Tasks of rows, which are a token and a head of the group each; a chunk's longest come first."""
    group = shape.heads // shape.kv_heads
    tasks = 0
    for chunk in range(chunks):
        rows = (staged.starts[chunk + 1] - staged.starts[chunk]) * group
        tiles = (rows + shape.attention_rows - 1) // shape.attention_rows
        for tile in range(tiles - 1, -1, -1):
            first = rows * tile // tiles
            last = rows * (tile + 1) // tiles
            for head in range(shape.kv_heads):
                staged.tasks[tasks, CHUNK] = chunk
                staged.tasks[tasks, KV_HEAD] = head
                staged.tasks[tasks, FIRST_ROW] = first
                staged.tasks[tasks, ROWS] = last - first
                tasks += 1
    return tasks
