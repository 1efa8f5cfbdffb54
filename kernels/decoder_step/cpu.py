"""A whole step of a Llama-family decoder as one compiled function, run by all threads at the same time.

    embedding; per layer: norm, query/key/value projection, rotation and cache write, attention, output projection,
    norm, gate and up projection, SiLU, down projection; then norm and LM head on the rows whose logits are wanted

Spin barriers separate the stages. Within a stage a thread owns a range of rows (norms, rotation) or of channel panels
(projections), or takes tasks from a counter (attention). One thread computes each output value in a fixed order, so the
result does not depend on the number of threads. If there is a single row, every thread normalises and quantises it into
its own copy: cheaper than one more barrier.
"""

from __future__ import annotations

import numpy as np

from ..compile_cache import compiled, inlined
from ..embedding.cpu import embedding_row
from ..quantise.cpu import plain_row
from ..rms_norm.cpu import rms_norm_row
from ..silu_mul.cpu import silu_mul_row
from ..simd.formats import CacheTag, Tag
from ..threads.atomics import atomic_set
from ..threads.waiting import barrier, finish_job, wait_for_job
from .attention import attention_stage, rotation_stage
from .projection import project, project_layer
from .shape import (
    DOWN,
    FINAL_NORM,
    GATE_UP,
    HEAD,
    HEAD_SCALE,
    INPUT_NORM,
    LOGIT_ROWS,
    OUT,
    POST_NORM,
    QKV,
    TOKENS,
    Memory,
    Shape,
    Staged,
)


@inlined
def _normalise(tag: Tag, row: int, to: int, weight: int, scratch: int, shape: Shape, memory: Memory) -> None:
    """Normalise one row of the residual stream into row `to` of the activations."""
    rms_norm_row(
        tag,
        memory.hidden + row * shape.hidden_padded * 4,
        weight,
        shape.hidden_padded,
        memory.activations + to * shape.activation_stride,
        scratch,
        np.float32(shape.hidden),
        np.float32(shape.eps),
    )


@inlined
def _step(
    tag: Tag,
    adapter_tag: Tag,
    cache_tag: CacheTag,
    thread: int,
    threads: int,
    state: int,
    generation: int,
    shape: Shape,
    memory: Memory,
    staged: Staged,
) -> int:
    tokens = staged.job[TOKENS]
    weights = memory.weights
    single = tokens == 1
    first, last = tokens * thread // threads, tokens * (thread + 1) // threads
    hidden_bytes, mlp_bytes = shape.hidden_padded * 4, shape.mlp_padded * 8
    scratch = memory.scratch + thread * shape.scratch_stride
    for row in range(first, last):
        embedding_row(
            tag,
            memory.embedding,
            staged.tokens[row],
            shape.hidden,
            shape.embedding_is_bfloat16,
            memory.hidden + row * hidden_bytes,
        )
    if thread == 0:
        for layer in range(shape.layers):
            atomic_set(memory.counters + layer * 64, 0)
    generation = barrier(state, threads, generation)
    if single:
        first, last = 0, 1
    copy = thread if single else 0  # of the activations
    for layer in range(shape.layers):
        for row in range(first, last):
            _normalise(tag, row, row + copy, weights[layer, INPUT_NORM], scratch, shape, memory)
        if not single:
            generation = barrier(state, threads, generation)
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
            layer,
            QKV,
            shape,
            memory,
            staged,
            shape.hidden_padded,
            shape.qkv_padded,
            memory.qkv,
            0,
        )
        rotation_stage(cache_tag, thread, threads, layer, shape, memory, staged)
        generation = barrier(state, threads, generation)
        attention_stage(cache_tag, thread, threads, layer, shape, memory, staged)
        generation = barrier(state, threads, generation)
        for row in range(first, last):
            to = row + copy
            plain_row(
                tag,
                memory.attention + row * shape.attention_padded * 4,
                shape.attention_padded,
                memory.activations + to * shape.activation_stride,
                scratch,
            )
        if not single:
            generation = barrier(state, threads, generation)
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
            layer,
            OUT,
            shape,
            memory,
            staged,
            shape.attention_padded,
            shape.hidden_padded,
            memory.hidden,
            1,
        )
        for row in range(first, last):
            _normalise(tag, row, row + copy, weights[layer, POST_NORM], scratch, shape, memory)
        if not single:
            generation = barrier(state, threads, generation)
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
            layer,
            GATE_UP,
            shape,
            memory,
            staged,
            shape.hidden_padded,
            2 * shape.mlp_padded,
            memory.gate_up,
            0,
        )
        for row in range(first, last):
            to = row + copy
            silu_mul_row(
                tag,
                memory.gate_up + row * mlp_bytes,
                shape.mlp_padded,
                memory.activations + to * shape.activation_stride,
                scratch,
            )
        if not single:
            generation = barrier(state, threads, generation)
        generation = project_layer(
            tag,
            adapter_tag,
            thread,
            threads,
            state,
            generation,
            layer,
            DOWN,
            shape,
            memory,
            staged,
            shape.mlp_padded,
            shape.hidden_padded,
            memory.hidden,
            1,
        )
    return _logits(tag, thread, threads, state, generation, scratch, shape, memory, staged)


@inlined
def _logits(
    tag: Tag,
    thread: int,
    threads: int,
    state: int,
    generation: int,
    scratch: int,
    shape: Shape,
    memory: Memory,
    staged: Staged,
) -> int:
    rows = staged.job[LOGIT_ROWS]
    if rows == 0:
        return generation
    copy = thread if rows == 1 else 0
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    if rows == 1:
        first, last = 0, 1
    for row in range(first, last):
        norm = memory.weights[shape.layers, FINAL_NORM]
        _normalise(tag, staged.logit_rows[row], row + copy, norm, scratch, shape, memory)
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
        memory.weights[shape.layers, HEAD],
        memory.weights[shape.layers, HEAD_SCALE],
        memory.logits,
        0,
    )
    return generation


@compiled
def work(
    tag: Tag,
    adapter_tag: Tag,
    cache_tag: CacheTag,
    thread: int,
    threads: int,
    state: int,
    shape: Shape,
    memory: Memory,
    staged: Staged,
) -> None:
    """The loop of a worker thread: wait for a job, run the step with the others, report; until the pool closes."""
    done, generation = 0, 0
    while wait_for_job(state, done):
        done += 1
        generation = _step(tag, adapter_tag, cache_tag, thread, threads, state, generation, shape, memory, staged)
        finish_job(state, threads, done)
