"""Prepares a batch of texts: checks it, copies it, places its keys, and cuts the attention into tasks.

The check guards raw memory: everything that the step uses as an index is compared with its bound here.
"""

from __future__ import annotations

from ..compile_cache import compiled, inlined
from ..paged_attention.cache import BLOCK_TOKENS
from .shape import (
    TASK_HEAD,
    TASK_LENGTH,
    TASK_MOST,
    TASK_START,
    TASK_TOKEN,
    TASK_TOKENS,
    TASKS,
    TOKENS,
    EncoderShape,
    Int32Array,
    StagedTexts,
)

OK, BAD_STARTS, BAD_TOKEN, BAD_TYPE, BAD_LENGTH, BAD_BLOCKS = range(6)


@compiled
def stage_texts(
    shape: EncoderShape, staged: StagedTexts, tokens: Int32Array, token_types: Int32Array, starts: Int32Array
) -> tuple[int, int]:
    """(OK, 0), or what is wrong and at which index. The caller checks the sizes of the arrays."""
    count, texts = tokens.shape[0], starts.shape[0] - 1
    if starts[0] != 0 or starts[texts] != count:
        return BAD_STARTS, 0
    block, tasks = 0, 0
    for text in range(texts):
        first, length = starts[text], starts[text + 1] - starts[text]
        if length < 1:
            return BAD_STARTS, text
        if length > shape.max_length:
            return BAD_LENGTH, text
        blocks = (length + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        if block + blocks > shape.max_blocks:
            return BAD_BLOCKS, text
        for position in range(length):
            token = first + position
            if tokens[token] < 0 or tokens[token] >= shape.vocab_size:
                return BAD_TOKEN, token
            if token_types[token] < 0 or token_types[token] >= shape.token_types:
                return BAD_TYPE, token
            staged.tokens[token] = tokens[token]
            staged.positions[token] = position
            staged.places[token] = token_types[token] * shape.max_length + position
            staged.slots[token] = block * BLOCK_TOKENS + position
        tasks = _cut_attention(shape, staged, tasks, first, length)
        block += blocks
    staged.job[TOKENS] = count
    staged.job[TASKS] = tasks
    return OK, 0


@inlined
def _cut_attention(shape: EncoderShape, staged: StagedTexts, tasks: int, first: int, length: int) -> int:
    """One head's tasks follow each other: they read the same keys and values."""
    pieces = (length + TASK_MOST - 1) // TASK_MOST
    for head in range(shape.heads):
        for piece in range(pieces):
            start = length * piece // pieces
            row = staged.tasks[tasks]
            row[TASK_HEAD] = head
            row[TASK_TOKEN] = first + start
            row[TASK_TOKENS] = length * (piece + 1) // pieces - start
            row[TASK_START] = first
            row[TASK_LENGTH] = length
            tasks += 1
    return tasks
