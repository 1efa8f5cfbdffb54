"""The MLP of a layer with experts, as a part of the compiled step: norm, router, grouped GEMM; adds to the residual.

If there is a single row, every thread normalises it into its own copy.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import inlined, inner
from ..experts.cpu import activation_stage, narrow_stage, wide_stage
from ..experts.route import group_rows, route_row
from ..experts.shape import ExpertMemory
from ..gemm.shared import shared_gemm
from ..simd.formats import Tag
from ..threads.shares import NOTHING, WHOLE, Crew, shares_of, take
from .entering import normalised_row
from .shape import MLP_NORM, NEW, NO_ADDRESS, TOKENS, Memory, Shape, Staged


@inner
def expert_layer(
    tag: Tag,
    crew: Crew,
    stage: int,
    layer: int,
    scratch: int,
    shape: Shape,
    memory: Memory,
    own: ExpertMemory,
    staged: Staged,
) -> int:
    """From the residual stream before the MLP to the one after it."""
    tokens = staged.job[TOKENS]
    new, no_scales = int(NEW), int(NO_ADDRESS)  # not literals: see cpu.py
    first = crew.thread if tokens == 1 else crew.threads
    experts, router_tag, k = shape.experts, own.router_tag, shape.hidden_padded
    stage = _enter(tag, crew, stage, layer, scratch, tokens, shape, memory, own)
    stage = shared_gemm(
        router_tag,
        crew,
        stage,
        new,
        tokens,
        k,
        own.inputs + first * experts.router_stride,
        experts.router_stride,
        own.routers[layer],
        no_scales,
        no_scales,
        experts.router_padded,
        int(np.int64(own.logits.ctypes.data)),
        experts.router_padded * 4,
    )
    stage = _route(crew, stage, layer, tokens, shape, own)
    inputs = memory.activations + first * shape.activation_stride
    stage = wide_stage(tag, crew, stage, layer, inputs, experts, own)
    stage = activation_stage(tag, crew, stage, scratch, experts, own)
    return narrow_stage(tag, crew, stage, layer, memory.hidden, experts, own)


@inlined
def _enter(
    tag: Tag,
    crew: Crew,
    stage: int,
    layer: int,
    scratch: int,
    tokens: int,
    shape: Shape,
    memory: Memory,
    own: ExpertMemory,
) -> int:
    """The rows as input of the experts and, in its own format, of the router."""
    if tokens == 1:
        _enter_row(tag, layer, tokens - 1, crew.thread, scratch, shape, memory, own)
        return stage
    stage += 1
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            _enter_row(tag, layer, row, crew.threads + row, scratch, shape, memory, own)


@inner
def _enter_row(
    tag: Tag, layer: int, row: int, place: int, scratch: int, shape: Shape, memory: Memory, own: ExpertMemory
) -> None:
    norm = int(MLP_NORM)
    to, router_to = memory.activations + place * shape.activation_stride, own.inputs
    router_to += place * shape.experts.router_stride
    normalised_row(tag, layer, norm, row, to, scratch, shape, memory)
    normalised_row(own.router_tag, layer, norm, row, router_to, scratch, shape, memory)


@inlined
def _route(crew: Crew, stage: int, layer: int, tokens: int, shape: Shape, own: ExpertMemory) -> int:
    """Each row's experts, then the rows by expert, which one thread does."""
    stage += 1
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            break
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            route_row(crew.thread, layer, row, shape.experts, own)
    stage += 1
    whole = int(WHOLE)
    while True:
        share = take(crew, stage, whole, share)
        if share < 0:
            return stage
        group_rows(shape.experts, own, tokens)
