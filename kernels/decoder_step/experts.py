"""The MLP of a layer with experts, as a part of the compiled step: norm, router, grouped GEMM; adds to the residual.

If there is a single row, every thread normalises it into its own copy, and one thread routes it.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import inner
from ..experts.cpu import activation_stage, narrow_stage, wide_stage
from ..experts.route import group_rows, route_row
from ..experts.shape import ExpertMemory
from ..gemm.cpu import gemm
from ..simd.formats import Tag
from ..threads.waiting import barrier
from .entering import normalised_row
from .shape import MLP_NORM, NEW, NO_ADDRESS, TOKENS, Memory, Shape, Staged


@inner
def expert_layer(
    tag: Tag,
    thread: int,
    threads: int,
    state: int,
    generation: int,
    layer: int,
    scratch: int,
    shape: Shape,
    memory: Memory,
    own: ExpertMemory,
    staged: Staged,
) -> int:
    """From the residual stream before the MLP to the one after it."""
    tokens = staged.job[TOKENS]
    norm, new, no_scales = int(MLP_NORM), int(NEW), int(NO_ADDRESS)  # not literals: see cpu.py
    single = tokens == 1
    first, last = tokens * thread // threads, tokens * (thread + 1) // threads
    copy = 0
    if single:
        first, last, copy = 0, 1, thread
    experts, router_tag, k = shape.experts, own.router_tag, shape.hidden_padded
    for row in range(first, last):
        to, router_to = memory.activations + (row + copy) * shape.activation_stride, own.inputs
        router_to += (row + copy) * experts.router_stride
        normalised_row(tag, layer, norm, row, to, scratch, shape, memory)
        normalised_row(router_tag, layer, norm, row, router_to, scratch, shape, memory)
    if not single:
        generation = barrier(state, threads, generation)
    gemm(
        router_tag,
        thread,
        threads,
        new,
        tokens,
        k,
        own.inputs + copy * experts.router_stride,
        experts.router_stride,
        own.routers[layer],
        no_scales,
        no_scales,
        experts.router_padded,
        int(np.int64(own.logits.ctypes.data)),
        experts.router_padded * 4,
    )
    generation = barrier(state, threads, generation)
    if single and thread != 0:
        last = 0
    for row in range(first, last):
        route_row(thread, layer, row, experts, own)
    if not single:
        generation = barrier(state, threads, generation)
    if thread == 0:
        group_rows(experts, own, tokens)
    generation = barrier(state, threads, generation)
    inputs = memory.activations + copy * shape.activation_stride
    wide_stage(tag, thread, threads, layer, inputs, experts, own)
    generation = barrier(state, threads, generation)
    activation_stage(tag, thread, threads, scratch, experts, own)
    generation = barrier(state, threads, generation)
    narrow_stage(tag, thread, threads, layer, memory.hidden, experts, own)
    return barrier(state, threads, generation)
