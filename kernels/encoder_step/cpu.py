"""A whole step of an encoder as one compiled function, run by all threads at the same time.

    embedding and its norm; per layer: query/key/value projection, rotation, attention, output projection, norm,
    projection up, activation, projection down, norm

Every norm follows a projection and writes the next one's input, whether the model normalises before or after its
blocks: see MIX_STAYS in shape.py. As in the decoder's step, spin barriers separate the stages, a thread owns a range
of rows or of channel panels, and one thread computes each value in a fixed order. So a text's result depends neither on
the number of threads nor on the texts beside it.
"""

from __future__ import annotations

import numpy as np

from ..activation.cpu import activation_row
from ..compile_cache import compiled, inlined, inner
from ..embedding.cpu import embedding_row
from ..gemm.cpu import gemm
from ..layer_norm.cpu import layer_norm_row
from ..quantise.cpu import plain_row
from ..simd.formats import CacheTag, Tag
from ..threads.atomics import atomic_set
from ..threads.waiting import NONE_YET, barrier, finish_job, wait_for_job
from .attention import both_sides_stage, layout_stage
from .shape import (
    ADDED,
    DOWN,
    EMBEDDING_NORM,
    EMBEDDING_SHIFT,
    MIX_BIAS,
    MIX_NORM,
    MIX_SHIFT,
    MIX_STAYS,
    NEW,
    NEXT_BIAS,
    NEXT_NORM,
    NEXT_SHIFT,
    NEXT_STAYS,
    OUT,
    QKV,
    STAYS,
    TOKENS,
    UP,
    UP_BIAS,
    EncoderAddresses,
    EncoderShape,
    StagedTexts,
)


@inlined
def _project(
    tag: Tag,
    thread: int,
    threads: int,
    layer: int,
    matrix: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    rows: int,
    k: int,
    channels: int,
    out: int,
    add: int,
) -> None:
    """The activations times one of a layer's matrices."""
    weights, scales = memory.weights[layer, matrix], memory.weights[layer, matrix + 1]
    stride = shape.activation_stride
    gemm(
        tag,
        thread,
        threads,
        add,
        rows,
        k,
        memory.activations,
        stride,
        weights,
        scales,
        shape.group_shift,
        channels,
        out,
        channels * 4,
    )


@inner
def _norm_rows(
    tag: Tag,
    first: int,
    last: int,
    bias: int,
    weight: int,
    shift: int,
    stays: int,
    scratch: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
) -> None:
    """Normalise rows of the residual stream into the activations."""
    for row in range(first, last):
        layer_norm_row(
            tag,
            memory.hidden + row * shape.hidden_padded * 4,
            bias,
            weight,
            shift,
            stays,
            shape.hidden_padded,
            memory.activations + row * shape.activation_stride,
            scratch,
            np.float32(shape.hidden),
            np.float32(shape.eps),
        )


@inner
def _embed(
    tag: Tag, first: int, last: int, scratch: int, shape: EncoderShape, memory: EncoderAddresses, staged: StagedTexts
) -> None:
    """Token embeddings plus learned positions and token types, normalised; the norm's result stays."""
    norm, shift = memory.weights[shape.layers, EMBEDDING_NORM], memory.weights[shape.layers, EMBEDDING_SHIFT]
    for row in range(first, last):
        hidden = memory.hidden + row * shape.hidden_padded * 4
        kind, one = shape.embedding_is_bfloat16, np.float32(1)  # as embedding/cpu.py numbers the kinds
        embedding_row(tag, memory.embedding, staged.tokens[row], shape.hidden, kind, hidden, one)
        place = memory.places + staged.places[row] * shape.place_stride
        _norm_rows(tag, row, row + 1, place, norm, shift, int(STAYS), scratch, shape, memory)


@inner
def _activate(
    tag: Tag, first: int, last: int, layer: int, scratch: int, shape: EncoderShape, memory: EncoderAddresses
) -> None:
    """The gate times the other half of the projection, or the activation alone."""
    half, bias = shape.mlp_padded * 4, memory.weights[layer, UP_BIAS]
    gated = shape.up_padded > shape.mlp_padded
    for row in range(first, last):
        up = memory.up + row * shape.up_padded * 4
        activation_row(
            tag,
            up,
            up + half if gated else memory.ones,
            bias,
            bias + half if gated else memory.zeros,
            shape.mlp_padded,
            memory.activations + row * shape.activation_stride,
            scratch,
            shape.activation,
        )


@inlined
def _step(
    tag: Tag,
    cache_tag: CacheTag,
    thread: int,
    threads: int,
    state: int,
    generation: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> int:
    tokens = staged.job[TOKENS]
    weights = memory.weights
    new, added = int(NEW), int(ADDED)  # literals would be variants of the GEMM, each compiled
    first, last = tokens * thread // threads, tokens * (thread + 1) // threads
    scratch = memory.scratch + thread * shape.scratch_stride
    if thread == 0:
        for layer in range(shape.layers):
            atomic_set(memory.counters + layer * 64, 0)
    _embed(tag, first, last, scratch, shape, memory, staged)
    generation = barrier(state, threads, generation)
    hidden, qkv, up = shape.hidden_padded, shape.qkv_padded, shape.up_padded
    for layer in range(shape.layers):
        _project(tag, thread, threads, layer, QKV, shape, memory, tokens, hidden, qkv, memory.qkv, new)
        generation = barrier(state, threads, generation)
        layout_stage(cache_tag, thread, threads, layer, shape, memory, staged)
        generation = barrier(state, threads, generation)
        both_sides_stage(cache_tag, thread, threads, layer, shape, memory, staged)
        generation = barrier(state, threads, generation)
        for row in range(first, last):
            mixed = memory.attention + row * shape.attention_padded * 4
            written = memory.activations + row * shape.activation_stride
            plain_row(tag, mixed, shape.attention_padded, written, scratch)
        generation = barrier(state, threads, generation)
        mixed_size = shape.attention_padded
        _project(tag, thread, threads, layer, OUT, shape, memory, tokens, mixed_size, hidden, memory.hidden, added)
        generation = barrier(state, threads, generation)
        row = weights[layer]
        stays = row[MIX_STAYS]
        _norm_rows(tag, first, last, row[MIX_BIAS], row[MIX_NORM], row[MIX_SHIFT], stays, scratch, shape, memory)
        generation = barrier(state, threads, generation)
        _project(tag, thread, threads, layer, UP, shape, memory, tokens, hidden, up, memory.up, new)
        generation = barrier(state, threads, generation)
        _activate(tag, first, last, layer, scratch, shape, memory)
        generation = barrier(state, threads, generation)
        mlp = shape.mlp_padded
        _project(tag, thread, threads, layer, DOWN, shape, memory, tokens, mlp, hidden, memory.hidden, added)
        generation = barrier(state, threads, generation)
        stays = row[NEXT_STAYS]
        _norm_rows(tag, first, last, row[NEXT_BIAS], row[NEXT_NORM], row[NEXT_SHIFT], stays, scratch, shape, memory)
        generation = barrier(state, threads, generation)
    return generation


@compiled
def work(
    tag: Tag,
    cache_tag: CacheTag,
    thread: int,
    threads: int,
    state: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> None:
    """The loop of a worker thread: wait for a job, run the step with the others, report; until the pool closes."""
    done, generation = int(NONE_YET), int(NONE_YET)
    while wait_for_job(state, done):
        done += 1
        generation = _step(tag, cache_tag, thread, threads, state, generation, shape, memory, staged)
        finish_job(state, threads, done)
