"""A projection of the compiled step: the GEMM over packed weights, and what adapters add to a layer's."""

from __future__ import annotations

from ..compile_cache import inlined, inner
from ..gemm.cpu import gemm
from ..simd.formats import Tag
from ..threads.waiting import barrier
from .low_rank import expand_stage, shrink_stage
from .shape import LOW_RANK_TASKS, TOKENS, Memory, Shape, Staged


@inlined
def project(
    tag: Tag,
    thread: int,
    threads: int,
    shape: Shape,
    memory: Memory,
    rows: int,
    k: int,
    channels: int,
    stride: int,
    weights: int,
    scales: int,
    out: int,
    add: int,
) -> None:
    """The activations times one weight matrix, to rows of `stride` bytes; of a single row each thread has its copy."""
    copy = thread if rows == 1 else 0
    gemm(
        tag,
        thread,
        threads,
        add,
        rows,
        k,
        memory.activations + copy * shape.activation_stride,
        shape.activation_stride,
        weights,
        scales,
        shape.group_shift,
        channels,
        out,
        stride,
    )


@inner
def project_layer(
    tag: Tag,
    adapter_tag: Tag | None,
    thread: int,
    threads: int,
    state: int,
    generation: int,
    layer: int,
    matrix: int,
    shape: Shape,
    memory: Memory,
    staged: Staged,
    k: int,
    channels: int,
    stride: int,
    out: int,
    add: int,
) -> int:
    """A layer's projection, with the low-rank parts of rows that have an adapter, up to the barrier behind it.

    `adapter_tag`: the format of adapters, None: there are none, and no code for them.
    """
    tuned = staged.job[LOW_RANK_TASKS] > 0
    if adapter_tag is not None and tuned:
        shrink_stage(adapter_tag, thread, threads, layer, matrix, shape, memory, staged)
    project(
        tag,
        thread,
        threads,
        shape,
        memory,
        staged.job[TOKENS],
        k,
        channels,
        stride,
        memory.weights[layer, matrix],
        memory.weights[layer, matrix + 1],
        out,
        add,
    )
    generation = barrier(state, threads, generation)
    if adapter_tag is not None and tuned:
        expand_stage(adapter_tag, thread, threads, layer, matrix, channels, stride, out, shape, staged)
        generation = barrier(state, threads, generation)
    return generation
