"""The compiled encoder step's description of a model: sizes, addresses, columns of the weight table, slots of a job.

As kernels/decoder_step/shape.py: all are run-time values, so that any encoder runs without compiling again, and padding
is zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

# Columns of the weight table, one row per layer. MIX is the norm behind the attention, NEXT the one behind the MLP;
# of each the weight, the shift, the bias of the projection before it, and whether its result replaces the residual
# stream (a norm after a block) or only feeds the next one (a norm before a block).
QKV, QKV_SCALE, OUT, OUT_SCALE, UP, UP_SCALE, DOWN, DOWN_SCALE, QKV_BIAS, UP_BIAS = range(10)
MIX_NORM, MIX_SHIFT, MIX_BIAS, MIX_STAYS = range(10, 14)
NEXT_NORM, NEXT_SHIFT, NEXT_BIAS, NEXT_STAYS = range(14, 18)
ROTATION, REACH = 18, 19  # of a layer: the address of its cosines and sines; how far a token sees to either side
WEIGHT_COLUMNS = 20
EMBEDDING_NORM, EMBEDDING_SHIFT = range(2)  # in the last row, after the layers

NEW, ADDED = range(2)  # what a projection does with its products
STAYS = 1

TOKENS, TASKS = range(2)  # slots of the job array
JOB_SLOTS = 8

# columns of the attention task table: tokens of one text and one head
TASK_HEAD, TASK_TOKEN, TASK_TOKENS, TASK_START, TASK_LENGTH = range(5)
TASK_COLUMNS = 5
TASK_MOST = 64  # tokens


class EncoderShape(NamedTuple):
    """Sizes in values unless the name says bytes."""

    layers: int
    hidden: int
    hidden_padded: int
    heads: int
    head_dim: int
    head_padded: int
    qkv_padded: int
    attention_padded: int
    mlp_padded: int
    up_padded: int  # channels of the projection before the activation: twice the MLP's where it has a gate
    activation: int  # its number, see simd/activations.py
    vocab_size: int
    token_types: int
    max_tokens: int
    max_blocks: int  # of 64 keys each; a text begins a new one
    max_length: int
    group_shift: int
    region_bytes: int
    query_bytes: int
    rotation_stride: int  # bytes from one position to the next; 0 if the model has no rotary embedding
    place_stride: int  # bytes from one row of `places` to the next; 0 if the model has no learned positions
    activation_stride: int
    scratch_stride: int
    embedding_is_bfloat16: int
    eps: float
    query_factor: float  # log2(e) / sqrt(head_dim)


class EncoderAddresses(NamedTuple):
    """Addresses of the arrays that a step reads and writes; the owner keeps them alive."""

    weights: Int64Array  # [layers + 1, WEIGHT_COLUMNS]
    embedding: int
    places: int  # [token_types][max_length][hidden_padded] float32: learned position plus token type
    ones: int  # float32, as long as the widest row
    zeros: int
    cache: int  # [max_blocks][heads] regions, written anew by every layer
    blocks: int  # int32: the numbers from 0 on, of which any part is a text's block table
    hidden: int  # [max_tokens, hidden_padded] float32, the residual stream and the result
    activations: int
    qkv: int
    queries: int  # [heads][max_tokens] rows of query_bytes
    attention: int
    up: int  # [max_tokens, up_padded] float32
    scratch: int


class StagedTexts(NamedTuple):
    """The batch of the coming step, copied and prepared by stage.py."""

    job: Int64Array
    tokens: Int32Array
    positions: Int32Array
    places: Int32Array  # per token, its row of EncoderAddresses.places
    slots: Int32Array  # per token, block * 64 + position in the block
    tasks: Int32Array  # [tasks, TASK_COLUMNS], the same for every layer
