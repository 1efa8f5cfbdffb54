"""The grouped GEMM of a mixture of experts: each expert's panels are read once for all rows that chose it.

    up projections (wide): the panels of all experts in use are one list, of which each thread has an equal part
    activation: each thread has a part of the entries, an entry being a row and one of its experts
    down projections (narrow): each thread has the same channels of every expert, and adds its experts in ascending
        order to the rows' sums, so no two threads write to the same place

Between them all threads wait for each other. The tiles are gemm/cpu.py's: a row's result does not depend on its batch.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import compiled, inlined
from ..gemm.cpu import panel_layout, tile, tile_rows, tiles_in_cache, unaided_rows
from ..gemm.tile import PANEL
from ..silu_mul.cpu import silu_mul_row
from ..simd.formats import Tag
from .rows import add_weighted, copy_bytes
from .shape import (
    COUNT,
    DOWN,
    DOWN_BIAS,
    DOWN_SCALE,
    EXPERT,
    FIRST,
    GATE_UP,
    GATE_UP_BIAS,
    GATE_UP_SCALE,
    NARROW,
    NARROW_STRIDE,
    WIDE,
    WIDTH,
    ExpertMemory,
    ExpertShape,
)

PANEL_BYTES = PANEL * 4  # of a row's results


@compiled
def wide_stage(
    tag: Tag, thread: int, threads: int, layer: int, inputs: int, shape: ExpertShape, memory: ExpertMemory
) -> None:
    """Gates and ups of all entries. `inputs`: the address of row 0, written by this thread or before a barrier."""
    groups, used = memory.groups, memory.counts[0]
    total = 0
    for index in range(used):
        total += 2 * groups[index, WIDTH] // PANEL
    first, last, start = total * thread // threads, total * (thread + 1) // threads, 0
    together = tiles_in_cache(tag, shape.hidden_padded) * tile_rows(tag)
    for index in range(used):
        panels = 2 * groups[index, WIDTH] // PANEL
        begin, end = max(first - start, 0), min(last - start, panels)
        start += panels
        for block in range(0, groups[index, COUNT] if begin < end else 0, together):
            rows = min(groups[index, COUNT] - block, together)
            _wide_block(tag, thread, layer, inputs, index, block, rows, begin, end, shape, memory)


@inlined
def _wide_block(
    tag: Tag,
    thread: int,
    layer: int,
    inputs: int,
    index: int,
    block: int,
    rows: int,
    begin: int,
    end: int,
    shape: ExpertShape,
    memory: ExpertMemory,
) -> None:
    """The panels from begin to end for the rows of one block, gathered first unless there is only one."""
    group = memory.groups[index]
    expert = memory.table[layer, group[EXPERT]]
    entry = group[FIRST] + block
    a = inputs + memory.entry_rows[entry] * shape.input_stride
    if rows > 1:
        a = memory.gathered + thread * shape.gathered_stride
        for row in range(rows):
            source = inputs + memory.entry_rows[entry + row] * shape.input_stride
            copy_bytes(a + row * shape.input_stride, source, shape.input_stride)
    panel_bytes, scale_bytes, steps = panel_layout(tag, shape.hidden_padded, shape.group_shift)
    most = tile_rows(tag)
    tiles = (rows + most - 1) // most
    out_stride = 8 * group[WIDTH]
    out = group[WIDE] + block * out_stride
    bias = expert[GATE_UP_BIAS]
    for panel in range(begin, end):
        w = expert[GATE_UP] + panel * panel_bytes
        ahead = rows > unaided_rows(tag) and panel + 1 < end
        to = out + panel * PANEL_BYTES
        if bias != 0:
            for row in range(rows):
                copy_bytes(to + row * out_stride, bias + panel * PANEL_BYTES, PANEL_BYTES)
        for t in range(tiles):
            row = rows * t // tiles
            own = a + row * shape.input_stride
            tile(
                tag,
                rows * (t + 1) // tiles - row,
                own,
                shape.input_stride,
                w,
                steps,
                to + row * out_stride,
                out_stride,
                expert[GATE_UP_SCALE] + panel * scale_bytes,
                shape.group_shift,
                w + panel_bytes if ahead and t == 0 else own,
                int(bias != 0),
            )


@compiled
def activation_stage(
    tag: Tag, thread: int, threads: int, scratch: int, shape: ExpertShape, memory: ExpertMemory
) -> None:
    """Of every entry: gates and ups to the input row of its second projection. `scratch` holds a float32 row."""
    total = 0
    for index in range(memory.counts[0]):
        total += memory.groups[index, COUNT]
    first, last = total * thread // threads, total * (thread + 1) // threads
    limit, slope, offset = np.float32(shape.gate_limit), np.float32(shape.gate_slope), np.float32(shape.up_offset)
    for index in range(memory.counts[0]):
        group = memory.groups[index]
        width, start = group[WIDTH], group[FIRST]
        for entry in range(max(first - start, 0), min(last - start, group[COUNT])):
            gates = group[WIDE] + entry * 8 * width
            out = group[NARROW] + entry * group[NARROW_STRIDE]
            silu_mul_row(tag, gates, width, out, scratch, limit, slope, offset)


@compiled
def narrow_stage(
    tag: Tag, thread: int, threads: int, layer: int, out: int, shape: ExpertShape, memory: ExpertMemory
) -> None:
    """out[row, hidden_padded] += the weighted results of the row's experts."""
    panels = shape.hidden_padded // PANEL
    begin, end = panels * thread // threads, panels * (thread + 1) // threads
    results = memory.gathered + thread * shape.gathered_stride
    most = tile_rows(tag)
    for index in range(memory.counts[0]):
        group = memory.groups[index]
        expert = memory.table[layer, group[EXPERT]]
        panel_bytes, scale_bytes, steps = panel_layout(tag, group[WIDTH], shape.group_shift)
        rows, stride = group[COUNT], group[NARROW_STRIDE]
        tiles, in_cache = (rows + most - 1) // most, tiles_in_cache(tag, group[WIDTH])
        for block in range(0, tiles, in_cache):
            for panel in range(begin, end):
                w = expert[DOWN] + panel * panel_bytes
                ahead = rows > unaided_rows(tag) and panel + 1 < end
                for t in range(block, min(tiles, block + in_cache)):
                    first = rows * t // tiles
                    count = rows * (t + 1) // tiles - first
                    own = group[NARROW] + first * stride
                    tile(
                        tag,
                        count,
                        own,
                        stride,
                        w,
                        steps,
                        results,
                        PANEL_BYTES,
                        expert[DOWN_SCALE] + panel * scale_bytes,
                        shape.group_shift,
                        w + panel_bytes if ahead and t == block else own,
                        0,
                    )
                    for row in range(count):
                        entry = group[FIRST] + first + row
                        add_weighted(
                            tag,
                            results + row * PANEL_BYTES,
                            expert[DOWN_BIAS] + panel * PANEL_BYTES,
                            memory.entry_weights[entry],
                            out + (memory.entry_rows[entry] * shape.hidden_padded + panel * PANEL) * 4,
                        )
