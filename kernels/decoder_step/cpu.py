"""A whole step of a decoder as one compiled function, run by all threads at the same time.

    embedding; per layer: norm, query/key/value projection, rotation and cache write, attention, output projection,
    norm, gate and up projection, activation, down projection (or experts.py); then norm and LM head on the rows whose
    logits are wanted

Families that have more (norms or biases behind the blocks) or less (no norm before them) say so in the weight table.
Where attention and MLP stand side by side, the gate and up projection comes before attention, from the same input.

Spin barriers separate the stages. Within a stage a thread owns a range of rows (norms, rotation) or of channel panels
(projections), or takes tasks from a counter (attention). One thread computes each output value in a fixed order, so the
result does not depend on the number of threads. If there is a single row, every thread normalises and quantises it into
its own copy: cheaper than one more barrier.

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
from ..threads.atomics import atomic_set
from ..threads.waiting import NONE_YET, barrier, finish_job, wait_for_job
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
    thread: int,
    threads: int,
    state: int,
    generation: int,
    shape: Shape,
    memory: Memory,
    experts: ExpertMemory | None,
    latent: Latent | None,
    staged: Staged,
) -> int:
    tokens = staged.job[TOKENS]
    weights = memory.weights
    # Of a literal argument, or one that is not an int64, numba would make a variant of the stage, and compile each.
    qkv, out, gate_up, down, new = int(QKV), int(OUT), int(GATE_UP), int(DOWN), int(NEW)
    out_bias, down_bias = int(OUT_BIAS), int(DOWN_BIAS)
    hidden_bytes = shape.hidden_padded * 4
    for row in range(tokens * thread // threads, tokens * (thread + 1) // threads):
        embedding_row(
            tag,
            memory.embedding,
            staged.tokens[row],
            shape.hidden,
            shape.embedding_kind,
            memory.hidden + row * hidden_bytes,
            np.float32(shape.embedding_factor),
        )
    if thread == 0:
        for layer in range(shape.layers):
            atomic_set(memory.counters + layer * 64, 0)
    generation = barrier(state, threads, generation)
    for layer in range(shape.layers):
        generation = enter(tag, thread, threads, state, generation, layer, qkv, tokens, shape, memory)
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
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
            generation = project_layer(
                tag,
                adapter_tag,
                thread,
                threads,
                state,
                generation,
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
            rotation_stage(cache_tag, thread, threads, layer, shape, memory, staged)
            generation = barrier(state, threads, generation)
            attention_stage(cache_tag, thread, threads, layer, memory.attention, shape, memory, staged)
            generation = barrier(state, threads, generation)
        if latent is not None:
            generation = latent_attention(tag, thread, threads, state, generation, layer, shape, memory, latent, staged)
        generation = enter(tag, thread, threads, state, generation, layer, out, tokens, shape, memory)
        branch = weights[layer, out_bias] != 0
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
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
            generation = add_branch(tag, thread, threads, state, generation, layer, out_bias, tokens, shape, memory)
        if experts is not None and experts.routers[layer] != 0:
            scratch = memory.scratch + thread * shape.scratch_stride
            generation = expert_layer(
                tag, thread, threads, state, generation, layer, scratch, shape, memory, experts, staged
            )
            continue
        if shape.parallel == 0:
            generation = enter(tag, thread, threads, state, generation, layer, gate_up, tokens, shape, memory)
            generation = project_layer(
                tag,
                adapter_tag,
                thread,
                threads,
                state,
                generation,
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
        generation = enter(tag, thread, threads, state, generation, layer, down, tokens, shape, memory)
        branch = weights[layer, down_bias] != 0
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
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
            generation = add_branch(tag, thread, threads, state, generation, layer, down_bias, tokens, shape, memory)
    return _logits(tag, thread, threads, state, generation, shape, memory, staged)


@inlined
def _logits(
    tag: Tag, thread: int, threads: int, state: int, generation: int, shape: Shape, memory: Memory, staged: Staged
) -> int:
    rows = staged.job[LOGIT_ROWS]
    if rows == 0:
        return generation
    scratch = memory.scratch + thread * shape.scratch_stride
    copy = thread if rows == 1 else 0
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    if rows == 1:
        first, last = 0, 1
    for row in range(first, last):
        to = memory.activations + (row + copy) * shape.activation_stride
        hidden_row = int(np.int64(staged.logit_rows[row]))
        normalised_row(tag, shape.layers, int(FINAL_NORM), hidden_row, to, scratch, shape, memory)
    generation = barrier(state, threads, generation)
    project(
        tag,
        thread,
        threads,
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
    if shape.logit_cap != 0:
        panels = shape.vocab_padded // PANEL
        begin, end = panels * thread // threads * PANEL, panels * (thread + 1) // threads * PANEL  # what it projected
        for row in range(rows):
            start = memory.logits + (row * shape.vocab_padded + begin) * 4
            cap_row(tag, start, end - begin, np.float32(shape.logit_cap))
    return generation


@compiled
def work(
    tag: Tag,
    adapter_tag: Tag | None,
    cache_tag: CacheTag | None,
    thread: int,
    threads: int,
    state: int,
    shape: Shape,
    memory: Memory,
    experts: ExpertMemory | None,
    latent: Latent | None,
    staged: Staged,
) -> None:
    """The loop of a worker thread: wait for a job, run the step with the others, report; until the pool closes."""
    done, generation = int(NONE_YET), int(NONE_YET)
    while wait_for_job(state, done):
        done += 1
        generation = _step(
            tag, adapter_tag, cache_tag, thread, threads, state, generation, shape, memory, experts, latent, staged
        )
        finish_job(state, threads, done)
