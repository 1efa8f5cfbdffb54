"""The weights of a decoder, packed for the CPU kernels, and the address table by which the compiled step reads them.

The LM head is quantised like the layers. With 4 bits, this causes 0.0038 of the 0.049 nats by which the bundled model
differs from bfloat16 (groups of 128: 0.010 of 0.073). An 8-bit head would be a third of all weights that a model of
125 million parameters reads per token.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.shape import (
    DOWN,
    DOWN_BIAS,
    FINAL_NORM,
    GATE_UP,
    GATE_UP_BIAS,
    HEAD,
    HEAD_SCALE,
    INPUT_NORM,
    KEY_NORM,
    MLP_NORM,
    OUT,
    OUT_BIAS,
    QKV,
    QKV_BIAS,
    QUERY_NORM,
    SINKS,
    WEIGHT_COLUMNS,
    Int64Array,
    Shape,
)
from ...kernels.gemm.pack import Each, IndexArray, Part, WeightArray, pack, packed_bytes, panel_bytes, to_float32
from ...kernels.gemm.pack_stored import pack_stored, stored_bytes
from ...kernels.rope.cpu import head_positions
from ...kernels.simd.formats import WeightFormat
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.spec import ModelSpec
from ..checkpoint.stored import StoredMatrix
from ..checkpoint.weights import DecoderWeights, LayerWeights, NormWeights
from ..pages import zeroed_pages
from .experts import ExpertArrays
from .kept import KeptWeights
from .memory import RunnerMemory, layer_matrices, matrix_bytes


def head_channels(shape: Shape, first_head: int, heads: int, order: IndexArray | None = None) -> IndexArray:
    """The channels of these heads' dimensions, with each head padded to two halves; q's and k's in rotary `order`."""
    starts = (first_head + np.arange(heads)) * shape.head_padded
    positions = head_positions(shape.head_dim)
    if order is not None:
        positions[order] = positions.copy()
    return (starts[:, None] + positions).reshape(-1)


class PackedWeights:
    """Fills the address table; the object keeps the memory alive."""

    def __init__(
        self,
        spec: ModelSpec,
        shape: Shape,
        weights: DecoderWeights,
        weight_format: WeightFormat,
        held: RunnerMemory,
        report: ReportProgress,
        threads: int = 1,
        kept: KeptWeights | None = None,
    ) -> None:
        self._spec, self._shape, self._report = spec, shape, report
        self._format: WeightFormat = weight_format
        self._experts, self._latent = held.experts, held.latent
        # All matrices are one array in huge pages: with these, a single sequence decodes a third faster.
        stored = weight_format == "stored"
        size = MeasuredWeights(spec, shape, weights).bytes if stored else matrix_bytes(spec, shape, weight_format)
        with ThreadPoolExecutor(threads, "triolet-packing") as pool:
            self._each: Each = pool.map
            loaded = None if kept is None else kept.load(size, pool, report)
            self._filled = loaded is not None
            self._packed = zeroed_pages(size) if loaded is None else loaded
            self._fill(weights, held.weight_table)
        if kept is not None and not self._filled:
            kept.save_later(self._packed)

    def _fill(self, weights: DecoderWeights, table: Int64Array) -> None:
        shape, self._used = self._shape, 0
        self.arrays: list[npt.NDArray[np.generic]] = []
        self._zeros = self._keep(np.zeros(max(shape.hidden_padded, shape.qkv_padded, 2 * shape.mlp_padded), np.float32))
        for index, layer in enumerate(weights.layers):
            self._layer(index, layer, table[index])
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
        self._norm(table[shape.layers], FINAL_NORM, weights.final_norm, self._spec.logit_factor)
        self.embedding = self._embedding(weights, int(table[shape.layers, HEAD_SCALE]))

    def _layer(self, index: int, layer: LayerWeights, row: Int64Array) -> None:
        shape = self._shape
        hidden, sizes = np.arange(shape.hidden), layer_matrices(shape)
        if layer.latent is None:
            projections, mixed = self._heads(layer, row)
        else:
            assert self._latent is not None
            order = self._spec.rotary_order
            projections, mixed = self._latent.projection(layer.latent, order), self._latent.mixed_channels()
            self._latent.fill(index, layer.latent, order, self._format, self._pack, self._keep)
        self._matrix(row, QKV, projections, hidden, *sizes[0])
        self._matrix(row, OUT, [Part(layer.o, hidden)], mixed, *sizes[1])
        if layer.experts is not None:
            assert self._experts is not None
            self._experts.fill(index, layer.experts, self._format, self._pack, self._keep)
        else:
            self._mlp(layer, row)
        self._norm(row, INPUT_NORM, layer.input_norm)
        self._norm(row, MLP_NORM, layer.mlp_norm)
        self._branch(row, OUT_BIAS, layer.o_bias, layer.attention_out_norm)

    def _heads(self, layer: LayerWeights, row: Int64Array) -> tuple[list[Part], IndexArray]:
        """The parts of the first projection, and where the inputs of the output projection are."""
        shape, order = self._shape, self._spec.rotary_order
        query = head_channels(shape, 0, shape.heads, order)
        key = head_channels(shape, shape.heads, shape.kv_heads, order)
        value = head_channels(shape, shape.heads + shape.kv_heads, shape.kv_heads)
        biases = [(layer.q_bias, query), (layer.k_bias, key), (layer.v_bias, value)]
        row[QKV_BIAS] = self._biases(biases, shape.qkv_padded)
        for column, gains, heads in ((QUERY_NORM, layer.q_norm, query), (KEY_NORM, layer.k_norm, key - key.min())):
            spread = np.zeros(len(heads) // shape.head_dim * shape.head_padded, np.float32)
            spread[heads] = 1 if gains is None else gains.reshape(-1)
            row[column] = self._keep(spread)
        if self._spec.sinks and layer.sinks is not None:
            row[SINKS] = self._sinks(to_float32(layer.sinks))
        projections = [Part(layer.q, query), Part(layer.k, key), Part(layer.v, value)]
        return projections, head_channels(shape, 0, shape.heads)

    def _mlp(self, layer: LayerWeights, row: Int64Array) -> None:
        shape = self._shape
        sizes, hidden, mlp = layer_matrices(shape), np.arange(shape.hidden), np.arange(int(layer.up.shape[0]))
        gates = [] if layer.gate is None else [Part(layer.gate, mlp)]
        ups = mlp if layer.gate is None else mlp + shape.mlp_padded
        self._matrix(row, GATE_UP, [*gates, Part(layer.up, ups)], hidden, *sizes[2])
        self._matrix(row, DOWN, [Part(layer.down, hidden)], mlp, *sizes[3])
        self._branch(row, DOWN_BIAS, layer.down_bias, layer.mlp_out_norm)
        if layer.gate is None:  # what takes the place of `up` is a row of zeros plus this
            row[GATE_UP_BIAS] = self._ungated(layer.up_bias)
        else:
            row[GATE_UP_BIAS] = self._biases([(layer.gate_bias, mlp), (layer.up_bias, ups)], 2 * shape.mlp_padded)

    def _sinks(self, sinks: npt.NDArray[np.float32]) -> int:
        """A score in base 2, and its part of the sum, for each head."""
        starts = np.ones((len(sinks), 2), np.float32)
        starts[:, 0] = sinks * np.float32(math.log2(math.e))
        return self._keep(starts)

    def _norm(self, row: Int64Array, column: int, norm: NormWeights | None, factor: float = 1.0) -> None:
        if norm is None:
            return
        hidden, size = np.arange(self._shape.hidden), self._shape.hidden_padded
        row[column] = self._vector(to_float32(norm.gain) * np.float32(factor), hidden, size)
        if norm.bias is None:
            row[column + 1] = self._zeros
        else:
            row[column + 1] = self._vector(to_float32(norm.bias) * np.float32(factor), hidden, size)

    def _branch(self, row: Int64Array, column: int, bias: WeightArray | None, norm: NormWeights | None) -> None:
        """What comes between a projection and the residual stream; nothing, if there is neither."""
        if bias is None and norm is None:
            return
        hidden, size = np.arange(self._shape.hidden), self._shape.hidden_padded
        row[column] = self._zeros if bias is None else self._vector(bias, hidden, size)
        if norm is not None:
            assert norm.bias is None  # no family has one there
            row[column + 1] = self._vector(norm.gain, hidden, size)

    def _biases(self, parts: list[tuple[WeightArray | None, IndexArray]], size: int) -> int:
        if all(part is None for part, _ in parts):
            return self._zeros
        whole = np.zeros(size, np.float32)
        for part, places in parts:
            if part is not None:
                whole[places] = to_float32(part)
        return self._keep(whole)

    def _ungated(self, bias: WeightArray | None) -> int:
        size = self._shape.mlp_padded
        whole = np.zeros(2 * size, np.float32)
        if bias is not None:
            whole[: len(bias)] = to_float32(bias)
        whole[size:] = 1
        return self._keep(whole)

    def _matrix(
        self, row: Int64Array, column: int, parts: list[Part], columns: IndexArray, channels: int, k: int
    ) -> None:
        row[column], row[column + 1] = self._pack(parts, columns, channels, k, self._format)

    def _pack(
        self, parts: list[Part], columns: IndexArray, channels: int, k: int, weight_format: WeightFormat
    ) -> tuple[int, int]:
        """The addresses of the panels and of their scales; of stored weights both are the table's."""
        stored = weight_format == "stored"
        size = stored_bytes(parts, columns, channels, k) if stored else packed_bytes(channels, k, weight_format)
        array = self._packed[self._used : self._used + size]
        self._used += size
        if not self._filled:
            if stored:
                pack_stored(array, parts, columns, channels, k, self._each)
            else:
                pack(array, parts, columns, channels, k, weight_format, self._each)
            done, total = self._used, self._packed.size
            self._report(LoadProgress(stage="packing weights", done=done, total=total, unit="bytes"))
        address = array.ctypes.data
        return address, address if stored else address + panel_bytes(channels, k, weight_format)

    def _embedding(self, weights: DecoderWeights, head: int) -> int:
        """The address of the table of input embeddings: the checkpoint's array, or packed codes (tied: the head's)."""
        embedding = weights.embedding
        if not isinstance(embedding, StoredMatrix):
            array = np.ascontiguousarray(embedding)
            self.arrays.append(array)
            return array.ctypes.data
        if weights.lm_head is None and self._format == "stored":
            return head
        shape = self._shape
        place = [Part(embedding, np.arange(shape.vocab_size))], np.arange(shape.hidden)
        packed = zeroed_pages(stored_bytes(*place, shape.vocab_padded, shape.hidden_padded))
        pack_stored(packed, *place, shape.vocab_padded, shape.hidden_padded, self._each)
        self.arrays.append(packed)
        return packed.ctypes.data

    def _vector(self, values: WeightArray, places: IndexArray, size: int) -> int:
        spread = np.zeros(size, np.float32)
        spread[places] = to_float32(values)
        return self._keep(spread)

    def _keep(self, array: npt.NDArray[np.float32]) -> int:
        self.arrays.append(array)
        return array.ctypes.data


class MeasuredWeights(PackedWeights):
    """The bytes that PackedWeights would take of weights as they are stored. It reads and packs nothing."""

    def __init__(self, spec: ModelSpec, shape: Shape, weights: DecoderWeights) -> None:
        self._spec, self._shape, self._format, self.bytes = spec, shape, "stored", 0
        own = shape.experts
        self._experts = ExpertArrays(own, shape.layers, "stored", 1, 1) if own.experts else None
        self._latent = None
        self.embedding_bytes: int | None = None  # of a stored embedding beside them
        self._fill(weights, np.zeros((shape.layers + 1, WEIGHT_COLUMNS), np.int64))

    def _layer(self, index: int, layer: LayerWeights, row: Int64Array) -> None:
        if layer.latent is None:  # else only widened weights run, and of those the embedding alone is asked for
            super()._layer(index, layer, row)

    def _pack(
        self, parts: list[Part], columns: IndexArray, channels: int, k: int, weight_format: WeightFormat
    ) -> tuple[int, int]:
        stored = weight_format == "stored"  # but not the router's
        self.bytes += stored_bytes(parts, columns, channels, k) if stored else packed_bytes(channels, k, weight_format)
        return 0, 0

    def _embedding(self, weights: DecoderWeights, head: int) -> int:
        shape = self._shape
        if isinstance(weights.embedding, StoredMatrix):
            tied = weights.lm_head is None
            place = [Part(weights.embedding, np.arange(shape.vocab_size))], np.arange(shape.hidden)
            self.embedding_bytes = 0 if tied else stored_bytes(*place, shape.vocab_padded, shape.hidden_padded)
        return 0
