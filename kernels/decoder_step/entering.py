"""The rows that enter a layer's projections, written as GEMM activations, and the rows that go back to the stream.

What a family has of it is data: a column of the weight table is 0 where there is no such norm, or no branch of its own.
"""

from __future__ import annotations

import numpy as np

from ..activation.cpu import activation_row
from ..compile_cache import inlined, inner
from ..quantise.cpu import plain_row
from ..rms_norm.cpu import add_norm_row, norm_row
from ..simd.formats import Tag
from ..threads.shares import NOTHING, Crew, shares_of, take
from .shape import DOWN, GATE_UP, GATE_UP_BIAS, INPUT_NORM, MLP_NORM, OUT, Memory, Shape


@inlined
def entering_row(
    tag: Tag, layer: int, matrix: int, row: int, out: int, scratch: int, shape: Shape, memory: Memory
) -> None:
    """Write the input of a layer's projection to `out`."""
    if matrix == OUT:
        size = shape.attention_padded
        plain_row(tag, memory.attention + row * size * 4, size, out, scratch)
    elif matrix == DOWN:
        size = shape.mlp_padded
        gates = memory.gate_up + row * size * 8
        bias = memory.weights[layer, GATE_UP_BIAS]
        ups, up_bias = gates + size * 4, bias + size * 4
        activation_row(tag, gates, ups, bias, up_bias, size, out, scratch, shape.activation)
    else:
        own = matrix == GATE_UP and shape.parallel == 0
        normalised_row(tag, layer, MLP_NORM if own else INPUT_NORM, row, out, scratch, shape, memory)


@inner
def normalised_row(
    tag: Tag, layer: int, norm: int, row: int, out: int, scratch: int, shape: Shape, memory: Memory
) -> None:
    """Write a row of the residual stream to `out`, through the norm of that column, if there is one."""
    size = shape.hidden_padded
    x = memory.hidden + row * size * 4
    gain, bias = memory.weights[layer, norm], memory.weights[layer, norm + 1]
    if gain == 0:
        plain_row(tag, x, size, out, scratch)
    else:
        count, eps = np.float32(shape.hidden), np.float32(shape.eps)
        norm_row(tag, x, gain, bias, size, out, scratch, shape.centred, count, eps)


@inner
def enter(tag: Tag, crew: Crew, stage: int, layer: int, matrix: int, tokens: int, shape: Shape, memory: Memory) -> int:
    """All rows of a projection's input; of a single row every thread writes its own copy, which is no stage."""
    scratch = memory.scratch + crew.thread * shape.scratch_stride
    if tokens == 1:
        copy = memory.activations + crew.thread * shape.activation_stride
        entering_row(tag, layer, matrix, tokens - 1, copy, scratch, shape, memory)  # not the literal 0: see cpu.py
        return stage
    stage += 1
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            to = memory.activations + (crew.threads + row) * shape.activation_stride
            entering_row(tag, layer, matrix, row, to, scratch, shape, memory)


@inner
def add_branch(
    tag: Tag, crew: Crew, stage: int, layer: int, column: int, tokens: int, shape: Shape, memory: Memory
) -> int:
    """Add the branch, with its bias and through its norm, to the residual stream."""
    stage += 1
    size = shape.hidden_padded
    bias, gain = memory.weights[layer, column], memory.weights[layer, column + 1]
    count, eps = np.float32(shape.hidden), np.float32(shape.eps)
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            x, out = memory.branch + row * size * 4, memory.hidden + row * size * 4
            add_norm_row(tag, x, bias, gain, size, out, shape.centred, count, eps)
