"""A whole step of a decoder as one compiled function, run by all threads at the same time.

    embedding; per layer: norm, query/key/value projection, rotation and cache write, attention, output projection,
    norm, gate and up projection, activation, down projection (or experts.py); then norm and LM head on the rows whose
    logits are wanted

Families that have more (norms or biases behind the blocks) or less (no norm before them) say so in the weight table.
Where attention and MLP stand side by side, the gate and up projection comes before attention, from the same input.

Each is a stage, cut into shares (threads/shares.py): ranges of rows (norms, rotation) or of channel panels
(projections), or tasks (attention). One thread computes each output value in a fixed order, so the result does not
depend on who computes it. If there is a single row, every thread normalises and quantises it into its own copy: cheaper
than one more stage. Copies have memory of their own, as a late thread may write one while others are in the next job.

A model without experts and a server without adapters pass None for them. numba then leaves their code out of the
function: to compile it takes a third of the time. A model either has latent attention or a cache's tag.
"""

from __future__ import annotations

import numpy as np

from ..activation.cpu import cap_row
from ..compile_cache import compiled, inlined
from ..embedding.cpu import embedding_row
from ..experts.shape import ExpertMemory
from ..gemm.tile import PANEL
from ..simd.formats import CacheTag, Tag
from ..threads.shares import NOTHING, Crew, end_job, is_over, shares_of, stage_before, take, wait_for_job
from ..threads.waiting import NO_JOB
from .attention import attention_stage, rotation_stage
from .entering import add_branch, enter, normalised_row
from .experts import expert_layer
from .latent import latent_attention
from .latent_shape import Latent
from .projection import project, project_layer
from .shape import (
    DOWN,
    DOWN_BIAS,
    FINAL_NORM,
    GATE_UP,
    HEAD,
    HEAD_SCALE,
    LOGIT_ROWS,
    NEW,
    OUT,
    OUT_BIAS,
    QKV,
    TOKENS,
    Memory,
    Shape,
    Staged,
)


@inlined
def _step(
    tag: Tag,
    adapter_tag: Tag | None,
    cache_tag: CacheTag | None,
    crew: Crew,
    job: int,
    shape: Shape,
    memory: Memory,
    experts: ExpertMemory | None,
    latent: Latent | None,
    staged: Staged,
) -> int:
    stage = stage_before(job, shape.layers)
    tokens = staged.job[TOKENS]
    weights = memory.weights
    # Of a literal argument, or one that is not an int64, numba would make a variant of the stage, and compile each.
    qkv, out, gate_up, down, new = int(QKV), int(OUT), int(GATE_UP), int(DOWN), int(NEW)
    out_bias, down_bias = int(OUT_BIAS), int(DOWN_BIAS)
    hidden_bytes = shape.hidden_padded * 4
    stage = _embed(tag, crew, stage, tokens, shape, memory, staged)
    for layer in range(shape.layers):
        if is_over(crew, job, shape.layers):
            return stage
        stage = enter(tag, crew, stage, layer, qkv, tokens, shape, memory)
        stage = project_layer(
            tag,
            adapter_tag,
            crew,
            stage,
            layer,
            qkv,
            shape,
            memory,
            staged,
            shape.hidden_padded,
            shape.qkv_padded,
            shape.qkv_padded * 4,
            memory.qkv,
            new,
        )
        if shape.parallel != 0:
            stage = project_layer(
                tag,
                adapter_tag,
                crew,
                stage,
                layer,
                gate_up,
                shape,
                memory,
                staged,
                shape.hidden_padded,
                shape.gate_up_channels,
                2 * shape.mlp_padded * 4,
                memory.gate_up,
                new,
            )
        if cache_tag is not None:
            stage = rotation_stage(cache_tag, crew, stage, layer, shape, memory, staged)
            stage = attention_stage(cache_tag, crew, stage, layer, memory.attention, shape, memory, staged)
        if latent is not None:
            stage = latent_attention(tag, crew, stage, layer, shape, memory, latent, staged)
        stage = enter(tag, crew, stage, layer, out, tokens, shape, memory)
        branch = weights[layer, out_bias] != 0
        stage = project_layer(
            tag,
            adapter_tag,
            crew,
            stage,
            layer,
            out,
            shape,
            memory,
            staged,
            shape.attention_padded,
            shape.hidden_padded,
            hidden_bytes,
            memory.branch if branch else memory.hidden,
            0 if branch else 1,
        )
        if branch:
            stage = add_branch(tag, crew, stage, layer, out_bias, tokens, shape, memory)
        if experts is not None and experts.routers[layer] != 0:
            scratch = memory.scratch + crew.thread * shape.scratch_stride
            stage = expert_layer(tag, crew, stage, layer, scratch, shape, memory, experts, staged)
            continue
        if shape.parallel == 0:
            stage = enter(tag, crew, stage, layer, gate_up, tokens, shape, memory)
            stage = project_layer(
                tag,
                adapter_tag,
                crew,
                stage,
                layer,
                gate_up,
                shape,
                memory,
                staged,
                shape.hidden_padded,
                shape.gate_up_channels,
                2 * shape.mlp_padded * 4,
                memory.gate_up,
                new,
            )
        stage = enter(tag, crew, stage, layer, down, tokens, shape, memory)
        branch = weights[layer, down_bias] != 0
        stage = project_layer(
            tag,
            adapter_tag,
            crew,
            stage,
            layer,
            down,
            shape,
            memory,
            staged,
            shape.mlp_padded,
            shape.hidden_padded,
            hidden_bytes,
            memory.branch if branch else memory.hidden,
            0 if branch else 1,
        )
        if branch:
            stage = add_branch(tag, crew, stage, layer, down_bias, tokens, shape, memory)
    return _logits(tag, crew, stage, shape, memory, staged)


@inlined
def _embed(tag: Tag, crew: Crew, stage: int, tokens: int, shape: Shape, memory: Memory, staged: Staged) -> int:
    stage += 1
    shares, share = shares_of(tokens, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for row in range(tokens * share // shares, tokens * (share + 1) // shares):
            embedding_row(
                tag,
                memory.embedding,
                staged.tokens[row],
                shape.hidden,
                shape.embedding_kind,
                memory.hidden + row * shape.hidden_padded * 4,
                np.float32(shape.embedding_factor),
            )


@inlined
def _logits(tag: Tag, crew: Crew, stage: int, shape: Shape, memory: Memory, staged: Staged) -> int:
    rows = staged.job[LOGIT_ROWS]
    if rows == 0:
        return stage
    stage = _final_norm(tag, crew, stage, rows, shape, memory, staged)
    stage = project(
        tag,
        crew,
        stage,
        shape,
        memory,
        rows,
        shape.hidden_padded,
        shape.vocab_padded,
        shape.vocab_padded * 4,
        memory.weights[shape.layers, HEAD],
        memory.weights[shape.layers, HEAD_SCALE],
        memory.logits,
        int(NEW),
    )
    return stage if shape.logit_cap == 0 else _cap_logits(tag, crew, stage, rows, shape, memory)


@inlined
def _final_norm(tag: Tag, crew: Crew, stage: int, rows: int, shape: Shape, memory: Memory, staged: Staged) -> int:
    """The rows whose logits are wanted, as input of the LM head; of a single row every thread writes its own copy."""
    scratch = memory.scratch + crew.thread * shape.scratch_stride
    if rows == 1:
        copy = memory.activations + crew.thread * shape.activation_stride
        row = int(np.int64(staged.logit_rows[0]))
        normalised_row(tag, shape.layers, int(FINAL_NORM), row, copy, scratch, shape, memory)
        return stage
    stage += 1
    shares, share = shares_of(rows, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        for index in range(rows * share // shares, rows * (share + 1) // shares):
            to = memory.activations + (crew.threads + index) * shape.activation_stride
            row = int(np.int64(staged.logit_rows[index]))
            normalised_row(tag, shape.layers, int(FINAL_NORM), row, to, scratch, shape, memory)


@inlined
def _cap_logits(tag: Tag, crew: Crew, stage: int, rows: int, shape: Shape, memory: Memory) -> int:
    stage += 1
    panels = shape.vocab_padded // PANEL
    shares, share = shares_of(panels, crew), int(NOTHING)
    while True:
        share = take(crew, stage, shares, share)
        if share < 0:
            return stage
        begin, end = panels * share // shares * PANEL, panels * (share + 1) // shares * PANEL
        for row in range(rows):
            start = memory.logits + (row * shape.vocab_padded + begin) * 4
            cap_row(tag, start, end - begin, np.float32(shape.logit_cap))


@compiled
def work(
    tag: Tag,
    adapter_tag: Tag | None,
    cache_tag: CacheTag | None,
    crew: Crew,
    shape: Shape,
    memory: Memory,
    experts: ExpertMemory | None,
    latent: Latent | None,
    staged: Staged,
) -> None:
    """The loop of a worker thread: wait for a job, run the step with the others, until the pool closes."""
    job = int(NO_JOB)
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = _step(tag, adapter_tag, cache_tag, crew, job, shape, memory, experts, latent, staged)
        end_job(crew, job, stage, shape.layers)
