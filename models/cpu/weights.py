"""The weights of a decoder, packed for the CPU kernels, and the address table by which the compiled step reads them.

The LM head is quantised like the layers. With 4 bits, this causes 0.0038 of the 0.049 nats by which the bundled model
differs from bfloat16 (groups of 128: 0.010 of 0.073). An 8-bit head would be a third of all weights that a model of
125 million parameters reads per token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.shape import (
    DOWN,
    FINAL_NORM,
    GATE_UP,
    HEAD,
    INPUT_NORM,
    KEY_NORM,
    OUT,
    POST_NORM,
    QKV,
    QKV_BIAS,
    QUERY_NORM,
    Int64Array,
    Shape,
)
from ...kernels.gemm.pack import IndexArray, Part, WeightArray, pack, packed_bytes, panel_bytes, to_float32
from ...kernels.rope.cpu import head_positions
from ...kernels.simd.formats import WeightFormat
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.weights import DecoderWeights, LayerWeights
from .memory import aligned_bytes, layer_matrices, matrix_bytes


def head_channels(shape: Shape, first_head: int, heads: int) -> IndexArray:
    """The channels of these heads' dimensions, with each head padded to two halves."""
    starts = (first_head + np.arange(heads)) * shape.head_padded
    return (starts[:, None] + head_positions(shape.head_dim)).reshape(-1)


class PackedWeights:
    """Fills the address table; the object keeps the memory alive."""

    def __init__(
        self,
        shape: Shape,
        weights: DecoderWeights,
        weight_format: WeightFormat,
        table: Int64Array,
        report: ReportProgress,
    ) -> None:
        self._shape = shape
        self._format: WeightFormat = weight_format
        # All matrices are one array: numpy asks for huge pages if an array has at least 4 MB. With these, a single
        # sequence decodes a third faster.
        self._packed = aligned_bytes(matrix_bytes(shape, weight_format))
        self._used = 0
        self.arrays: list[npt.NDArray[np.float32]] = []
        total = shape.layers + 1  # the head is one more
        for index, layer in enumerate(weights.layers):
            self._layer(layer, table[index])
            report(LoadProgress(stage="packing weights", done=index + 1, total=total))
        hidden = np.arange(shape.hidden)
        head = weights.embedding if weights.lm_head is None else weights.lm_head
        self._matrix(
            table[shape.layers],
            HEAD,
            [Part(head, np.arange(shape.vocab_size))],
            hidden,
            shape.vocab_padded,
            shape.hidden_padded,
        )
        table[shape.layers, FINAL_NORM] = self._vector(weights.final_norm, hidden, shape.hidden_padded)
        report(LoadProgress(stage="packing weights", done=total, total=total))

    def _layer(self, layer: LayerWeights, row: Int64Array) -> None:
        shape = self._shape
        hidden, mlp = np.arange(shape.hidden), np.arange(int(layer.gate.shape[0]))
        query = head_channels(shape, 0, shape.heads)
        key = head_channels(shape, shape.heads, shape.kv_heads)
        value = head_channels(shape, shape.heads + shape.kv_heads, shape.kv_heads)
        sizes = layer_matrices(shape)
        projections = [Part(layer.q, query), Part(layer.k, key), Part(layer.v, value)]
        self._matrix(row, QKV, projections, hidden, *sizes[0])
        self._matrix(row, OUT, [Part(layer.o, hidden)], query, *sizes[1])
        gates = [Part(layer.gate, mlp), Part(layer.up, mlp + shape.mlp_padded)]
        self._matrix(row, GATE_UP, gates, hidden, *sizes[2])
        self._matrix(row, DOWN, [Part(layer.down, hidden)], mlp, *sizes[3])
        row[INPUT_NORM] = self._vector(layer.input_norm, hidden, shape.hidden_padded)
        row[POST_NORM] = self._vector(layer.post_norm, hidden, shape.hidden_padded)
        bias = np.zeros(shape.qkv_padded, np.float32)
        for part, channels in ((layer.q_bias, query), (layer.k_bias, key), (layer.v_bias, value)):
            if part is not None:
                bias[channels] = to_float32(part)
        row[QKV_BIAS] = self._keep(bias)
        positions = head_positions(shape.head_dim)
        for column, norm in ((QUERY_NORM, layer.q_norm), (KEY_NORM, layer.k_norm)):
            gain = np.ones(shape.head_dim, np.float32) if norm is None else norm
            row[column] = self._vector(gain, positions, shape.head_padded)

    def _matrix(
        self, row: Int64Array, column: int, parts: list[Part], columns: IndexArray, channels: int, k: int
    ) -> None:
        size = packed_bytes(channels, k, self._format)
        array = self._packed[self._used : self._used + size]
        self._used += size
        pack(array, parts, columns, channels, k, self._format)
        row[column] = array.ctypes.data
        row[column + 1] = array.ctypes.data + panel_bytes(channels, k, self._format)

    def _vector(self, values: WeightArray, places: IndexArray, size: int) -> int:
        spread = np.zeros(size, np.float32)
        spread[places] = to_float32(values)
        return self._keep(spread)

    def _keep(self, array: npt.NDArray[np.float32]) -> int:
        self.arrays.append(array)
        return array.ctypes.data
