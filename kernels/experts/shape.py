"""The description of a model's experts for the compiled step: sizes, the table of addresses, the plan of a layer.

All are run-time values. Sizes called `padded` are multiples of 64; the padding of weights and activations is zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..gemm.cpu import L2_ACTIVATION_BYTES
from ..gemm.tile import MOST_ROWS, PANEL
from ..gemm.tile_int4 import INT4_MOST_ROWS
from ..quantise.layout import row_bytes
from ..simd.formats import GROUP, Tag, WeightFormat
from .routing import Scores

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = range(3)
SCORES: dict[Scores, int] = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "softmax of chosen": SOFTMAX_OF_CHOSEN}

# columns of the table of experts [layers, experts + 1]: addresses; the last row of a layer is its shared expert
GATE_UP, GATE_UP_SCALE, DOWN, DOWN_SCALE, GATE_UP_BIAS, DOWN_BIAS = range(6)  # a GATE_UP_BIAS of 0: none
EXPERT_COLUMNS = 6
# Columns of the groups: an expert, its first entry and how many (one for each row that chose it), its padded width, the
# address of its gates and ups, the address and bytes per entry of the input of its second projection
EXPERT, FIRST, COUNT, WIDTH, WIDE, NARROW, NARROW_STRIDE = range(7)
GROUP_COLUMNS = 7


class ExpertShape(NamedTuple):
    """Sizes in values unless the name says bytes; `experts` 0: the model has none."""

    experts: int  # without the shared one
    chosen: int  # experts of a row
    router_padded: int  # channels of the router: the experts, and the shared expert's gate
    hidden_padded: int
    width_padded: int  # of an expert's middle layer
    shared_padded: int  # of the shared expert's, 0 without one
    shared_gated: int  # its weight is the sigmoid of channel `experts` of the router, else 1
    scores: int
    normalised: int
    scale: float
    groups: int
    chosen_groups: int
    group_best: int
    group_shift: int  # 2 ** shift groups of 32 inputs share a scale of 4-bit weights
    input_stride: int  # bytes of a row of the first projection's input
    router_stride: int  # of the router's
    narrow_stride: int  # of the second projection's
    shared_narrow_stride: int
    gathered_stride: int  # bytes of a thread's part of `gathered`
    gate_limit: float  # of silu_mul/reference.py, as the next two
    gate_slope: float
    up_offset: float


class ExpertMemory(NamedTuple):
    """What the stages read and write; numbers are addresses. The owner keeps the arrays alive."""

    router_tag: Tag  # of the format of routers
    routers: Int64Array  # [layers], 0: the layer has no experts
    router_bias: Float32Array  # [layers, router_padded]
    correction: Float32Array  # [layers, router_padded]
    table: Int64Array  # [layers, experts + 1, EXPERT_COLUMNS]
    inputs: int  # [threads + rows][router_stride] input of the router: as Memory.activations
    logits: Float32Array  # [max_tokens, router_padded]; becomes the scores
    preference: Float32Array  # [threads, router_padded]
    chosen: Int32Array  # [max_tokens, chosen]
    weights: Float32Array  # [max_tokens, chosen + 1], of the chosen and of the shared expert
    groups: Int64Array  # [experts + 1, GROUP_COLUMNS] the layer's experts in use, ascending
    counts: Int64Array  # [experts + 1]: number of groups, then scratch
    entry_rows: Int32Array  # [max_tokens * (chosen + 1)] rows, grouped by expert, then of the shared expert
    entry_weights: Float32Array
    gathered: int  # [threads][gathered_stride] inputs of one expert's rows, and one tile's results
    wide: int  # [max_tokens * chosen][2 * width_padded] float32, gates and ups
    narrow: int  # [max_tokens * chosen] rows, input of the second projection
    shared_wide: int
    shared_narrow: int
    zeros: int  # hidden_padded float32


def gathered_bytes(weight_format: WeightFormat, hidden_padded: int, input_stride: int, max_tokens: int) -> int:
    """Of a thread's part of `gathered`: the most rows of one expert that are computed together, and a tile beyond."""
    in_cache = L2_ACTIVATION_BYTES // (hidden_padded // GROUP * row_bytes(weight_format, GROUP))
    rows = min(max_tokens, max(in_cache, MOST_ROWS, INT4_MOST_ROWS))
    return max((rows + INT4_MOST_ROWS) * input_stride, MOST_ROWS * PANEL * 4)
