"""The grouped GEMM of a mixture of experts: each expert's panels are read once for all rows that chose it.

    up projections (wide): the panels of all experts in use are one list, of which each share is an equal part
    activation: a share is a part of the entries, an entry being a row and one of its experts
    down projections (narrow): a share is the same channels of every expert; it adds the experts in ascending order to
        the rows' sums, so no two threads write to the same place

Weights as a checkpoint stores them (gemm/segments.py) are taken segment by segment, others are one segment.

The tiles are gemm/cpu.py's: a row's result does not depend on its batch.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import compiled, inlined
from ..gemm.cpu import panel_layout, segment_of, segments_of, stored, tile, tile_rows, tiles_in_cache, unaided_rows
from ..gemm.tile import PANEL
from ..silu_mul.cpu import silu_mul_row
from ..simd.formats import Tag
from ..threads.shares import NOTHING, Crew, shares_of, take, taking_part
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
    Int64Array,
)

PANEL_BYTES = PANEL * 4  # of a row's results
SHARES_A_THREAD = 2  # of panels: for each, the rows of its experts are gathered anew


@compiled
def wide_stage(
    tag: Tag, crew: Crew, stage: int, layer: int, inputs: int, shape: ExpertShape, memory: ExpertMemory
) -> int:
    """Gates and ups of all entries. `inputs`: the address of row 0, written by this thread or in an earlier stage."""
    stage += 1
    total = 0
    for index in range(memory.counts[0]):
        total += 2 * memory.groups[index, WIDTH] // PANEL
    shares, share = min(total, SHARES_A_THREAD * taking_part(crew)), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = total * share // shares, total * (share + 1) // shares
        _wide_panels(tag, crew.thread, layer, inputs, first, last, shape, memory)


@inlined
def _wide_panels(
    tag: Tag, thread: int, layer: int, inputs: int, first: int, last: int, shape: ExpertShape, memory: ExpertMemory
) -> None:
    groups, used, start = memory.groups, memory.counts[0], 0
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
    for number in range(segments_of(tag, expert[GATE_UP_SCALE])):
        start, panels, weights, scales, own_bytes, adds = segment_of(
            tag,
            number,
            shape.hidden_padded,
            expert[GATE_UP],
            expert[GATE_UP_SCALE],
            2 * group[WIDTH] // PANEL,
            panel_bytes,
        )
        last = min(end - start, panels)
        for panel in range(max(begin - start, 0), last):
            w = weights + panel * own_bytes
            ahead = rows > unaided_rows(tag) and panel + 1 < last
            place = (start + panel) * PANEL_BYTES
            if bias != 0 and adds == 0:
                for row in range(rows):
                    copy_bytes(out + row * out_stride + place, bias + place, PANEL_BYTES)
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
                    out + row * out_stride + place,
                    out_stride,
                    scales + panel * scale_bytes,
                    panel if stored(tag) else shape.group_shift,
                    w + own_bytes if ahead and t == 0 else own,
                    int(bias != 0) | adds,
                )


@compiled
def activation_stage(tag: Tag, crew: Crew, stage: int, scratch: int, shape: ExpertShape, memory: ExpertMemory) -> int:
    """Of every entry: gates and ups to the input row of its second projection. `scratch` holds a float32 row."""
    stage += 1
    total = 0
    for index in range(memory.counts[0]):
        total += memory.groups[index, COUNT]
    shares, share = shares_of(total, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        _activate(tag, scratch, total * share // shares, total * (share + 1) // shares, shape, memory)


@inlined
def _activate(tag: Tag, scratch: int, first: int, last: int, shape: ExpertShape, memory: ExpertMemory) -> None:
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
    tag: Tag, crew: Crew, stage: int, layer: int, out: int, shape: ExpertShape, memory: ExpertMemory
) -> int:
    """out[row, hidden_padded] += the weighted results of the row's experts."""
    stage += 1
    panels = shape.hidden_padded // PANEL
    shares, share = min(panels, SHARES_A_THREAD * taking_part(crew)), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        begin, end = panels * share // shares, panels * (share + 1) // shares
        for index in range(memory.counts[0]):
            expert = memory.table[layer, memory.groups[index, EXPERT]]
            for number in range(segments_of(tag, expert[DOWN_SCALE])):
                _narrow_segment(tag, crew.thread, index, number, expert, begin, end, out, shape, memory)


@inlined
def _narrow_segment(
    tag: Tag,
    thread: int,
    index: int,
    number: int,
    expert: Int64Array,
    begin: int,
    end: int,
    out: int,
    shape: ExpertShape,
    memory: ExpertMemory,
) -> None:
    """The panels from begin to end of one segment for all rows of one expert. A segment that adds has no bias."""
    group = memory.groups[index]
    results = memory.gathered + thread * shape.gathered_stride
    panel_bytes, scale_bytes, steps = panel_layout(tag, group[WIDTH], shape.group_shift)
    start, panels, weights, scales, own_bytes, adds = segment_of(
        tag, number, group[WIDTH], expert[DOWN], expert[DOWN_SCALE], shape.hidden_padded // PANEL, panel_bytes
    )
    rows, stride, most, last = group[COUNT], group[NARROW_STRIDE], tile_rows(tag), min(end - start, panels)
    tiles, in_cache = (rows + most - 1) // most, tiles_in_cache(tag, group[WIDTH])
    for block in range(0, tiles, in_cache):
        for panel in range(max(begin - start, 0), last):
            w, place = weights + panel * own_bytes, (start + panel) * PANEL_BYTES
            bias = memory.zeros if adds else expert[DOWN_BIAS] + place
            ahead = rows > unaided_rows(tag) and panel + 1 < last
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
                    scales + panel * scale_bytes,
                    panel if stored(tag) else shape.group_shift,
                    w + own_bytes if ahead and t == block else own,
                    0,
                )
                for row in range(count):
                    entry = group[FIRST] + first + row
                    add_weighted(
                        tag,
                        results + row * PANEL_BYTES,
                        bias,
                        memory.entry_weights[entry],
                        out + memory.entry_rows[entry] * shape.hidden_padded * 4 + place,
                    )
