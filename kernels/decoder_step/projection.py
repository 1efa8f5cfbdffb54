"""A projection of the compiled step: the GEMM over packed weights, and what adapters add to a layer's."""

from __future__ import annotations

from ..compile_cache import inlined, inner
from ..gemm.shared import shared_gemm
from ..simd.formats import Tag
from ..threads.shares import Crew
from .low_rank import expand_stage, shrink_stage
from .shape import LOW_RANK_TASKS, TOKENS, Memory, Shape, Staged


@inlined
def project(
    tag: Tag,
    crew: Crew,
    stage: int,
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
) -> int:
    """The activations times one weight matrix, to rows of `stride` bytes; of a single row each thread has its copy."""
    first = crew.thread if rows == 1 else crew.threads
    return shared_gemm(
        tag,
        crew,
        stage,
        add,
        rows,
        k,
        memory.activations + first * shape.activation_stride,
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
    crew: Crew,
    stage: int,
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
    """A layer's projection, with the low-rank parts of rows that have an adapter.

    `adapter_tag`: the format of adapters, None: there are none, and no code for them.
    """
    tuned = staged.job[LOW_RANK_TASKS] > 0
    if adapter_tag is not None and tuned:
        stage = shrink_stage(adapter_tag, crew, stage, layer, matrix, shape, memory, staged)
    stage = project(
        tag,
        crew,
        stage,
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
    if adapter_tag is not None and tuned:
        stage = expand_stage(adapter_tag, crew, stage, layer, matrix, channels, stride, out, shape, staged)
    return stage
