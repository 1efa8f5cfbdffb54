"""The experts of a mixture on the CPU: their sizes, working arrays and packed weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...kernels.experts.shape import (
    DOWN,
    DOWN_BIAS,
    DOWN_SCALE,
    EXPERT_COLUMNS,
    GATE_UP,
    GATE_UP_BIAS,
    GATE_UP_SCALE,
    GROUP_COLUMNS,
    SCORES,
    ExpertMemory,
    ExpertShape,
    Int64Array,
    gathered_bytes,
)
from ...kernels.gemm.pack import IndexArray, Part, packed_bytes, padded, to_float32
from ...kernels.gemm.tile_int4 import INT4_MOST_ROWS
from ...kernels.quantise.layout import row_bytes
from ...kernels.simd.formats import GROUP_SHIFTS, TAGS, WeightFormat
from ..checkpoint.experts import ExpertSpec, ExpertWeights, MlpWeights
from ..pages import CACHE_LINE, aligned_bytes

# Pack a matrix (parts, columns, channels, k, format); its address and that of its scales.
PackMatrix = Callable[[list[Part], IndexArray, int, int, WeightFormat], tuple[int, int]]
KeepVector = Callable[[npt.NDArray[np.float32]], int]  # the address of a copy


def router_format(weight_format: WeightFormat) -> WeightFormat:
    """A choice of experts should not hang on 8 bits: beside quantised weights the router is bfloat16. Beside weights
    as they are stored nothing is rounded, so it is float32."""
    return "float32" if weight_format in ("float32", "stored") else "bfloat16"


def make_expert_shape(
    spec: ExpertSpec | None, weight_format: WeightFormat, hidden: int, input_stride: int, max_tokens: int
) -> ExpertShape:
    """`hidden`: padded. Without experts all sizes are 0."""
    if spec is None:
        sizes = ExpertShape(*[0] * len(ExpertShape._fields))
        return sizes._replace(scale=1.0, gate_limit=0.0, gate_slope=0.0, up_offset=0.0)
    width, shared, routing = padded(spec.width), padded(spec.shared_width), spec.routing
    return ExpertShape(
        experts=spec.count,
        chosen=routing.chosen,
        router_padded=padded(spec.count + spec.shared_gated),
        hidden_padded=hidden,
        width_padded=width,
        shared_padded=shared,
        shared_gated=int(spec.shared_gated),
        scores=SCORES[routing.scores],
        normalised=int(routing.normalised),
        scale=float(routing.scale),
        groups=routing.groups,
        chosen_groups=routing.chosen_groups,
        group_best=routing.group_best,
        group_shift=GROUP_SHIFTS.get(weight_format, 0),
        input_stride=input_stride,
        router_stride=row_bytes(router_format(weight_format), hidden) + CACHE_LINE,
        narrow_stride=padded(row_bytes(weight_format, width)) + CACHE_LINE,
        shared_narrow_stride=padded(row_bytes(weight_format, shared)) + CACHE_LINE,
        gathered_stride=gathered_bytes(weight_format, hidden, input_stride, max_tokens),
        gate_limit=float(spec.gate_limit),
        gate_slope=float(spec.gate_slope),
        up_offset=float(spec.up_offset),
    )


def expert_bytes(shape: ExpertShape, weight_format: WeightFormat) -> int:
    """Bytes of a layer's packed experts and router."""

    def mlp(width: int) -> int:
        hidden = shape.hidden_padded
        return packed_bytes(2 * width, hidden, weight_format) + packed_bytes(hidden, width, weight_format)

    router = packed_bytes(shape.router_padded, shape.hidden_padded, router_format(weight_format))
    return router + shape.experts * mlp(shape.width_padded) + (mlp(shape.shared_padded) if shape.shared_padded else 0)


def expert_sizes(shape: ExpertShape, max_tokens: int, threads: int) -> dict[str, int]:
    """Bytes of every working array; the names are those of ExpertMemory."""
    entries = max_tokens * shape.chosen
    beyond = INT4_MOST_ROWS  # a tile reads past the last row
    return {
        "inputs": (threads + max_tokens + beyond) * shape.router_stride,
        "gathered": threads * shape.gathered_stride,
        "wide": entries * 2 * shape.width_padded * 4,
        "narrow": (entries + beyond) * shape.narrow_stride,
        "shared_wide": max_tokens * 2 * shape.shared_padded * 4,
        "shared_narrow": (max_tokens + beyond) * shape.shared_narrow_stride,
        "zeros": shape.hidden_padded * 4,
        "logits": max_tokens * shape.router_padded * 4,
    }


class ExpertArrays:
    """The working arrays and the address tables; `memory` is valid as long as this object lives."""

    def __init__(
        self, shape: ExpertShape, layers: int, weight_format: WeightFormat, max_tokens: int, threads: int
    ) -> None:
        self.shape = shape
        self._arrays = {name: aligned_bytes(size) for name, size in expert_sizes(shape, max_tokens, threads).items()}
        addresses = {name: array.ctypes.data for name, array in self._arrays.items() if name != "logits"}
        entries = max_tokens * (shape.chosen + 1)
        self.memory = ExpertMemory(
            router_tag=TAGS[router_format(weight_format)],
            routers=np.zeros(layers, np.int64),
            router_bias=np.zeros((layers, shape.router_padded), np.float32),
            correction=np.zeros((layers, shape.router_padded), np.float32),
            table=np.zeros((layers, shape.experts + 1, EXPERT_COLUMNS), np.int64),
            logits=self._arrays["logits"].view(np.float32).reshape(max_tokens, shape.router_padded),
            preference=np.zeros((threads, shape.router_padded), np.float32),
            chosen=np.zeros((max_tokens, shape.chosen), np.int32),
            weights=np.zeros((max_tokens, shape.chosen + 1), np.float32),
            groups=np.zeros((shape.experts + 1, GROUP_COLUMNS), np.int64),
            counts=np.zeros(shape.experts + 1, np.int64),
            entry_rows=np.zeros(entries, np.int32),
            entry_weights=np.zeros(entries, np.float32),
            **addresses,
        )

    def fill(
        self, layer: int, weights: ExpertWeights, weight_format: WeightFormat, pack: PackMatrix, keep: KeepVector
    ) -> None:
        """Pack a layer's router and experts, one by one, and write their addresses into the tables."""
        shape, memory = self.shape, self.memory
        channels = np.arange(shape.experts)
        parts = [Part(weights.router, channels)]
        if weights.shared_gate is not None:
            parts.append(Part(weights.shared_gate, np.array([shape.experts])))
        hidden = np.arange(int(weights.router.shape[1]))
        memory.routers[layer], _ = pack(
            parts, hidden, shape.router_padded, shape.hidden_padded, router_format(weight_format)
        )
        for target, vector in ((memory.router_bias, weights.router_bias), (memory.correction, weights.correction)):
            if vector is not None:
                target[layer, channels] = to_float32(vector)
        for row, mlp in zip(memory.table[layer], weights.experts, strict=False):  # the last row is the shared expert's
            self._fill_mlp(row, mlp, shape.width_padded, hidden, weight_format, pack, keep)
        if weights.shared is not None:
            row = memory.table[layer, shape.experts]
            self._fill_mlp(row, weights.shared, shape.shared_padded, hidden, weight_format, pack, keep)

    def _fill_mlp(
        self,
        row: Int64Array,
        mlp: MlpWeights,
        width_padded: int,
        hidden: IndexArray,
        weight_format: WeightFormat,
        pack: PackMatrix,
        keep: KeepVector,
    ) -> None:
        width, hidden_padded = np.arange(int(mlp.gate.shape[0])), self.shape.hidden_padded
        both = [Part(mlp.gate, width), Part(mlp.up, width + width_padded)]
        row[GATE_UP], row[GATE_UP_SCALE] = pack(both, hidden, 2 * width_padded, hidden_padded, weight_format)
        row[DOWN], row[DOWN_SCALE] = pack([Part(mlp.down, hidden)], width, hidden_padded, width_padded, weight_format)
        row[DOWN_BIAS] = self.memory.zeros
        if mlp.gate_bias is not None and mlp.up_bias is not None and mlp.down_bias is not None:
            wide, narrow = np.zeros(2 * width_padded, np.float32), np.zeros(hidden_padded, np.float32)
            wide[width], wide[width + width_padded] = to_float32(mlp.gate_bias), to_float32(mlp.up_bias)
            narrow[hidden] = to_float32(mlp.down_bias)
            row[GATE_UP_BIAS], row[DOWN_BIAS] = keep(wide), keep(narrow)
