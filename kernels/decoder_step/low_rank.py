"""The low-rank parts that LoRA adapters add to a layer's four projections, for the rows of a step that have one.

    shrink (before the projection): a share is a task, rows of one adapter; it writes A x of each
    expand (after it): a share is a range of channels, to which it adds B A x of all tasks

A row's input is computed once more in float32 or bfloat16, since the projection's may be quantised to 8 bits. Grouping
rows by adapter is from Punica (arXiv:2310.18547) and S-LoRA (arXiv:2311.03285).
"""

from __future__ import annotations

from ..compile_cache import inlined, inner
from ..gemm.tile import MOST_ROWS, PANEL
from ..low_rank.cpu import expand, shrink
from ..simd.formats import Tag
from ..threads.atomics import peek
from ..threads.shares import MOST_SHARES, NOTHING, Crew, shares_of, take
from .entering import entering_row
from .shape import (
    ADAPTER_COLUMNS,
    DOWN,
    GATE_UP,
    INPUT_ROW,
    INPUTS,
    INPUTS_STRIDE,
    LOW_RANK_A,
    LOW_RANK_B,
    LOW_RANK_TASKS,
    MODULES,
    NO_ADDRESS,
    OUT,
    QKV,
    RANK,
    SHRUNK,
    SHRUNK_MODULE,
    SHRUNK_STRIDE,
    TASK_ADAPTER,
    TASK_ROW,
    TASK_ROWS,
    Memory,
    Shape,
    Staged,
)


@inlined
def _modules(matrix: int) -> tuple[int, int]:
    """The first module that a projection merges, and the one after its last."""
    if matrix == QKV:
        return 0, 3
    if matrix == OUT:
        return 3, 4
    if matrix == GATE_UP:
        return 4, 6
    return 6, 7


@inlined
def _entry(adapter: int, layer: int, module: int, column: int) -> int:
    return peek(adapter + ((layer * MODULES + module) * ADAPTER_COLUMNS + column) * 8)


@inner
def shrink_stage(
    tag: Tag, crew: Crew, stage: int, layer: int, matrix: int, shape: Shape, memory: Memory, staged: Staged
) -> int:
    stage += 1
    job = staged.job
    inputs, input_row = job[INPUTS] + crew.thread * job[INPUTS_STRIDE], job[INPUT_ROW]
    sums = inputs + MOST_ROWS * input_row
    begin, end = _modules(matrix)
    tasks, none = job[LOW_RANK_TASKS], int(NO_ADDRESS)  # not a literal: see cpu.py
    shares, share = min(tasks, MOST_SHARES), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for task in range(tasks * share // shares, tasks * (share + 1) // shares):
            first, rows = staged.low_rank_tasks[task, TASK_ROW], staged.low_rank_tasks[task, TASK_ROWS]
            adapter = staged.low_rank_tasks[task, TASK_ADAPTER]
            most = 0
            for module in range(begin, end):
                most = max(most, _entry(adapter, layer, module, RANK))
            if most == 0:
                continue
            for row in range(first, first + rows):
                entering_row(tag, layer, matrix, row, inputs + (row - first) * input_row, none, shape, memory)
            k = shape.attention_padded if matrix == OUT else shape.mlp_padded if matrix == DOWN else shape.hidden_padded
            for module in range(begin, end):
                rank = _entry(adapter, layer, module, RANK)
                out = job[SHRUNK] + first * job[SHRUNK_STRIDE] + (module - begin) * job[SHRUNK_MODULE]
                a = _entry(adapter, layer, module, LOW_RANK_A)
                shrink(tag, rows, k, inputs, input_row, a, rank, sums, out, job[SHRUNK_STRIDE])


@inner
def expand_stage(
    tag: Tag,
    crew: Crew,
    stage: int,
    layer: int,
    matrix: int,
    channels: int,
    stride: int,
    out: int,
    shape: Shape,
    staged: Staged,
) -> int:
    """`out`, `stride` and `channels` are the projection's."""
    stage += 1
    panels = channels // PANEL
    shares, share = shares_of(panels, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = panels * share // shares, panels * (share + 1) // shares
        _expand(tag, layer, matrix, first, last, panels, stride, out, shape, staged)


@inlined
def _expand(
    tag: Tag,
    layer: int,
    matrix: int,
    first_panel: int,
    last_panel: int,
    panels: int,
    stride: int,
    out: int,
    shape: Shape,
    staged: Staged,
) -> None:
    job = staged.job
    begin, end = _modules(matrix)
    for task in range(job[LOW_RANK_TASKS]):
        first, rows = staged.low_rank_tasks[task, TASK_ROW], staged.low_rank_tasks[task, TASK_ROWS]
        adapter = staged.low_rank_tasks[task, TASK_ADAPTER]
        start = 0  # the module's first panel
        for module in range(begin, end):
            if matrix == QKV:
                size = (shape.heads if module == begin else shape.kv_heads) * shape.head_padded // PANEL
            elif matrix == GATE_UP:
                gates = shape.gate_up_channels > shape.mlp_padded or module > begin
                size = shape.mlp_padded // PANEL if gates else 0
            else:
                size = panels
            rank = _entry(adapter, layer, module, RANK)
            if rank > 0:
                shrunk = job[SHRUNK] + first * job[SHRUNK_STRIDE] + (module - begin) * job[SHRUNK_MODULE]
                expand(
                    tag,
                    rows,
                    rank,
                    shrunk,
                    job[SHRUNK_STRIDE],
                    _entry(adapter, layer, module, LOW_RANK_B),
                    max(first_panel, start) - start,
                    min(last_panel, start + size) - start,
                    out + first * stride + start * PANEL * 4,
                    stride,
                )
            start += size
