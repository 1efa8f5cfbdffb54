"""A whole step of an encoder as one compiled function, run by all threads at the same time.

    embedding and its norm; per layer: query/key/value projection, rotation, attention, output projection, norm,
    projection up, activation, projection down, norm

Every norm follows a projection and writes the next one's input, whether the model normalises before or after its
blocks: see MIX_STAYS in shape.py. As in the decoder's step, each of these is a stage, its shares are ranges of rows or
of channel panels, and one thread computes each value in a fixed order. So a text's result depends neither on the number
of threads nor on the texts beside it.
"""

from __future__ import annotations

import numpy as np

from ..activation.cpu import activation_row
from ..compile_cache import compiled, inlined, inner
from ..embedding.cpu import embedding_row
from ..gemm.shared import shared_gemm
from ..layer_norm.cpu import layer_norm_row
from ..quantise.cpu import plain_row
from ..simd.formats import CacheTag, Tag
from ..threads.shares import NOTHING, Crew, end_job, shares_of, stage_before, take, wait_for_job
from ..threads.waiting import NO_JOB
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
    crew: Crew,
    stage: int,
    layer: int,
    matrix: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    rows: int,
    k: int,
    channels: int,
    out: int,
    add: int,
) -> int:
    """The activations times one of a layer's matrices."""
    weights, scales = memory.weights[layer, matrix], memory.weights[layer, matrix + 1]
    stride = shape.activation_stride
    return shared_gemm(
        tag,
        crew,
        stage,
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


@inner
def _plain(tag: Tag, first: int, last: int, scratch: int, shape: EncoderShape, memory: EncoderAddresses) -> None:
    """Attention's results as they are."""
    for row in range(first, last):
        mixed = memory.attention + row * shape.attention_padded * 4
        plain_row(tag, mixed, shape.attention_padded, memory.activations + row * shape.activation_stride, scratch)


EMBED, PLAIN, MIX, ACTIVATE, NEXT = range(5)  # what a stage of rows does


@inner
def _rows(
    tag: Tag,
    crew: Crew,
    stage: int,
    layer: int,
    what: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> int:
    """A stage whose shares are rows."""
    stage += 1
    tokens, scratch = staged.job[TOKENS], memory.scratch + crew.thread * shape.scratch_stride
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        first, last = tokens * share // shares, tokens * (share + 1) // shares
        row = memory.weights[layer]
        if what == EMBED:
            _embed(tag, first, last, scratch, shape, memory, staged)
        elif what == PLAIN:
            _plain(tag, first, last, scratch, shape, memory)
        elif what == MIX:
            stays = row[MIX_STAYS]
            _norm_rows(tag, first, last, row[MIX_BIAS], row[MIX_NORM], row[MIX_SHIFT], stays, scratch, shape, memory)
        elif what == ACTIVATE:
            _activate(tag, first, last, layer, scratch, shape, memory)
        else:
            stays = row[NEXT_STAYS]
            _norm_rows(tag, first, last, row[NEXT_BIAS], row[NEXT_NORM], row[NEXT_SHIFT], stays, scratch, shape, memory)


@inlined
def _step(
    tag: Tag,
    cache_tag: CacheTag,
    crew: Crew,
    stage: int,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> int:
    tokens = staged.job[TOKENS]
    new, added = int(NEW), int(ADDED)  # literals would be variants of the GEMM, each compiled
    embed, plain, mix, activate, following = int(EMBED), int(PLAIN), int(MIX), int(ACTIVATE), int(NEXT)
    hidden, qkv, up, mixed, mlp = (
        shape.hidden_padded,
        shape.qkv_padded,
        shape.up_padded,
        shape.attention_padded,
        shape.mlp_padded,
    )
    stage = _rows(tag, crew, stage, int(NEW), embed, shape, memory, staged)
    for layer in range(shape.layers):
        stage = _project(tag, crew, stage, layer, QKV, shape, memory, tokens, hidden, qkv, memory.qkv, new)
        stage = layout_stage(cache_tag, crew, stage, layer, shape, memory, staged)
        stage = both_sides_stage(cache_tag, crew, stage, layer, shape, memory, staged)
        stage = _rows(tag, crew, stage, layer, plain, shape, memory, staged)
        stage = _project(tag, crew, stage, layer, OUT, shape, memory, tokens, mixed, hidden, memory.hidden, added)
        stage = _rows(tag, crew, stage, layer, mix, shape, memory, staged)
        stage = _project(tag, crew, stage, layer, UP, shape, memory, tokens, hidden, up, memory.up, new)
        stage = _rows(tag, crew, stage, layer, activate, shape, memory, staged)
        stage = _project(tag, crew, stage, layer, DOWN, shape, memory, tokens, mlp, hidden, memory.hidden, added)
        stage = _rows(tag, crew, stage, layer, following, shape, memory, staged)
    return stage


@compiled
def work(
    tag: Tag,
    cache_tag: CacheTag,
    crew: Crew,
    shape: EncoderShape,
    memory: EncoderAddresses,
    staged: StagedTexts,
) -> None:
    """The loop of a worker thread: wait for a job, run the step with the others, until the pool closes."""
    job = int(NO_JOB)
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, shape.layers)
        stage = _step(tag, cache_tag, crew, stage, shape, memory, staged)
        end_job(crew, job, stage, shape.layers)
