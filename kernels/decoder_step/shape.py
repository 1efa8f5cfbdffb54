"""The compiled step's description of a model: sizes, addresses, columns of the weight table, slots of a job.

All are run-time values, so any model of the family runs without compiling again. Sizes called `padded` are multiples of
64 (of a head: of 32). The padding of weights and activations is zeros, and every operation keeps it so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..experts.shape import ExpertShape

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

# columns of the weight table, one row per layer; the last row, after the layers, has the LM head and the final norm
QKV, QKV_SCALE, OUT, OUT_SCALE, GATE_UP, GATE_UP_SCALE, DOWN, DOWN_SCALE = range(8)
# Each norm of the residual stream is a gain and a bias; a gain of 0 means that there is no such norm.
INPUT_NORM, INPUT_NORM_BIAS, MLP_NORM, MLP_NORM_BIAS, QKV_BIAS, QUERY_NORM, KEY_NORM, GATE_UP_BIAS = range(8, 16)
# Bias and gain of what a block adds to the stream. A bias of 0: its projection adds directly; a gain of 0: no norm.
OUT_BIAS, OUT_NORM, DOWN_BIAS, DOWN_NORM = range(16, 20)
# addresses of the rotary tables; the keys that a query sees, including its own
ROTATION, QUERY_ROTATION, WINDOW = range(20, 23)
SINKS = 23  # what each head's softmax starts from, as softmax.py has it in a descriptor; 0: there are no sinks
HEAD, HEAD_SCALE, FINAL_NORM, FINAL_NORM_BIAS = range(4)
WEIGHT_COLUMNS = 24

NO_ADDRESS = 0
NEW = 0  # what a projection does with its products: they are new, or added to what is there (1)

# slots of the job array
TOKENS, LOGIT_ROWS, TASKS, LOW_RANK_TASKS = range(4)
# of adapters: the address and bytes per row of A x, bytes of one module in it; the address and bytes of a thread's
# scratch, bytes of an input row in it
SHRUNK, SHRUNK_STRIDE, SHRUNK_MODULE, INPUTS, INPUTS_STRIDE, INPUT_ROW = range(4, 10)
JOB_SLOTS = 16

# columns of the attention task table
CHUNK, KV_HEAD, FIRST_ROW, ROWS = range(4)

# The matrices with a low-rank part, in the order of an adapter's table: int64 [layers][MODULES][ADAPTER_COLUMNS]. The
# rank is padded to a multiple of 16; 0: this one has none. A and B are packed as gemm/pack.py does.
MODULES = 7  # query, key, value, output, gate, up, down
LOW_RANK_A, LOW_RANK_B, RANK = range(3)
ADAPTER_COLUMNS = 3

# columns of the low-rank task table: rows of one adapter
TASK_ROW, TASK_ROWS, TASK_ADAPTER = range(3)


class Shape(NamedTuple):
    """Sizes in values unless the name says bytes."""

    layers: int
    hidden: int
    hidden_padded: int
    heads: int
    kv_heads: int
    head_dim: int
    head_padded: int
    qkv_padded: int  # channels of the fused query, key and value projection
    attention_padded: int  # heads * head_padded
    mlp_padded: int
    vocab_size: int
    vocab_padded: int
    window: int  # the largest of any layer
    qk_norm: int  # 0: none; 1: of every head; 2: of all heads together
    centred: int  # norms subtract the mean
    parallel: int  # the MLP reads what attention reads
    gate_up_channels: int  # computed; a row has 2 * mlp_padded, of which those without a gate stay zero
    activation: int  # its number in simd/activations.py
    group_shift: int  # 2 ** shift groups of 32 inputs share a scale of 4-bit weights
    region_bytes: int  # of the keys and values of one block and kv head
    query_bytes: int  # of one head's query, for this cache format
    attention_rows: int  # at most, of one attention task
    num_blocks: int
    max_tokens: int
    max_length: int
    table_width: int  # blocks per sequence
    activation_stride: int  # bytes of a row of GEMM input
    scratch_stride: int  # bytes of a thread's working memory
    embedding_kind: int  # embedding/cpu.py
    experts: ExpertShape
    eps: float
    query_factor: float  # log2(e) times the scale of scores: the softmax is in base 2
    score_cap: float  # log2(e) times the soft cap of scores; 0: none
    logit_cap: float  # 0: none
    embedding_factor: float


class Memory(NamedTuple):
    """Addresses of the arrays that a step reads and writes; the owner keeps them alive."""

    weights: Int64Array  # [layers + 1, WEIGHT_COLUMNS], addresses but for the windows
    embedding: int
    rotation: int  # [tables][max_length, head_padded] float32, cosines then sines, each half padded
    cache: int  # [layers][num_blocks][kv_heads] regions
    hidden: int  # [max_tokens, hidden_padded] float32, the residual stream
    # [threads + rows][activation_stride], input of the next GEMM (quantise/layout.py): copies of a single row, one for
    # each thread, and then the rows of several
    activations: int
    qkv: int  # [max_tokens, qkv_padded] float32
    queries: int  # [kv_heads][max_tokens][group] rows of query_bytes
    attention: int  # [max_tokens, attention_padded] float32
    gate_up: int  # [max_tokens, 2 * mlp_padded] float32
    branch: int  # [max_tokens, hidden_padded] float32, what a block adds to the stream through a norm or with a bias
    logits: int  # [max_logit_rows, vocab_padded] float32
    scratch: int  # [threads][scratch_stride] bytes


class Staged(NamedTuple):
    """The batch of the coming step, copied and prepared by stage.py."""

    job: Int64Array
    tokens: Int32Array
    positions: Int32Array
    slots: Int32Array  # per token, where its key and value go: block * 64 + position in the block
    starts: Int32Array
    tables: Int32Array  # [max_tokens, table_width]
    logit_rows: Int32Array
    tasks: Int32Array  # [tasks, 4] attention tasks, the same for every layer
    low_rank_tasks: Int64Array  # [max_tokens, 3], the same for every layer


def attention_tasks(max_tokens: int, kv_heads: int, group: int, most_rows: int) -> int:
    """The most attention tasks that one step can have: every token is its own sequence."""
    return max_tokens * kv_heads * -(-group // most_rows)
