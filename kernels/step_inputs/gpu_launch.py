"""Launches of the kernels around a step: its inputs, its drawn tokens, its new blocks. Allocates nothing.

Sizes are the caller's buffers': a bucket with its padding, so that a graph can hold the launch.
"""

from __future__ import annotations

import torch

from ..gpu.language import cdiv
from .gpu import copy_blocks_kernel, keep_drawn_kernel, prepare_kernel, scatter_kernel
from .gpu_table import COPY_BLOCK, PREPARE_PROGRAMS, PREPARE_TILE, PREPARE_WARPS, SCATTER_BLOCK


def scatter(values: torch.Tensor, places: torch.Tensor, target: torch.Tensor) -> None:
    """target.flatten()[places[i]] = values[i], all int32. Places must differ."""
    _check(values, places, target)
    count = len(values)
    scatter_kernel[(cdiv(count, SCATTER_BLOCK),)](values, places, target, count, BLOCK=SCATTER_BLOCK, num_warps=4)


def prepare(
    chunk_slots: torch.Tensor, first_positions: torch.Tensor, starts: torch.Tensor, given_ids: torch.Tensor,
    slot_rows: torch.Tensor, *, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor,
    lengths: torch.Tensor, block_tables: torch.Tensor,
) -> None:  # fmt: skip
    """Fill ids, positions and slots [T], lengths [C] and block_tables [C, W] from chunks [C] and given ids [T].

    A chunk without tokens is padding and gets length 0; tokens behind the last chunk get slot -1. Of a block table only
    the entries in use are written.
    """
    _check(chunk_slots, first_positions, starts, given_ids, slot_rows, ids, positions, slots, lengths, block_tables)
    (tokens,), (chunks, width) = ids.shape, block_tables.shape
    if len(starts) != chunks + 1 or slot_rows.shape[1] != width + 1 or not len(given_ids) == len(slots) == tokens:
        raise ValueError(
            f"starts {len(starts)}, slot_rows {tuple(slot_rows.shape)}: expected {chunks + 1}, {width + 1}"
        )
    programs = min(PREPARE_PROGRAMS, cdiv(max(width, tokens), PREPARE_TILE))
    prepare_kernel[(chunks + 1, programs)](
        chunk_slots, first_positions, starts, given_ids, slot_rows,
        ids, positions, slots, lengths, block_tables, tokens, chunks,
        WIDTH=width, TILE=PREPARE_TILE, num_warps=PREPARE_WARPS,
    )  # fmt: skip


def keep_drawn(drawn: torch.Tensor, row_slots: torch.Tensor, slot_rows: torch.Tensor) -> None:
    """slot_rows[row_slots[r], 0] = drawn[r], but for negative slots."""
    _check(drawn, row_slots, slot_rows)
    rows = len(drawn)
    keep_drawn_kernel[(cdiv(rows, SCATTER_BLOCK),)](
        drawn, row_slots, slot_rows, rows, WIDTH=slot_rows.shape[1] - 1, BLOCK=SCATTER_BLOCK, num_warps=4
    )


def copy_blocks(sources: torch.Tensor, targets: torch.Tensor, cache: torch.Tensor) -> None:
    """cache[:, targets[i]] = cache[:, sources[i]]; cache int32 [parts, blocks, words], no target being a source."""
    _check(sources, targets, cache)
    parts, blocks, words = cache.shape
    copy_blocks_kernel[(len(sources), parts, cdiv(words, COPY_BLOCK))](
        sources, targets, cache, blocks, WORDS=words, BLOCK=COPY_BLOCK, num_warps=8
    )


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise ValueError(f"expected contiguous int32 tensors, one is {tensor.dtype} {tuple(tensor.stride())}")
