"""An encoder's weights packed for the CPU kernels, and the address table by which the compiled step reads them."""

import numpy as np
import numpy.typing as npt

from ...kernels.encoder_step.shape import (
    DOWN,
    EMBEDDING_NORM,
    EMBEDDING_SHIFT,
    MIX_BIAS,
    MIX_NORM,
    MIX_SHIFT,
    MIX_STAYS,
    NEXT_BIAS,
    NEXT_NORM,
    NEXT_SHIFT,
    NEXT_STAYS,
    OUT,
    QKV,
    QKV_BIAS,
    REACH,
    ROTATION,
    UP,
    UP_BIAS,
    EncoderShape,
    Int64Array,
)
from ...kernels.gemm.pack import IndexArray, Part, pack, packed_bytes, panel_bytes, to_float32
from ...kernels.rope.cpu import head_positions
from ...kernels.simd.formats import WeightFormat
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.rope import RopeSpec, rope_tables
from ..pages import aligned_bytes
from .memory import EncoderMemory, layer_matrices
from .spec import EncoderSpec
from .weights import Affine, EncoderLayer, EncoderWeights


class PackedEncoder:
    """Fills the address table and the tables of positions; the object keeps the memory alive."""

    def __init__(
        self,
        spec: EncoderSpec,
        shape: EncoderShape,
        weights: EncoderWeights,
        weight_format: WeightFormat,
        held: EncoderMemory,
        report: ReportProgress,
    ) -> None:
        self._shape = shape
        self._format: WeightFormat = weight_format
        size = sum(packed_bytes(n, k, weight_format) for n, k in layer_matrices(shape))
        self._packed = aligned_bytes(shape.layers * size)  # one array, for huge pages
        self._used = 0
        self._arrays: list[npt.NDArray[np.float32]] = []
        _fill_places(spec, weights, held.places)
        rotations = _fill_rotations(spec, shape, held.rotation)
        self._hidden = np.arange(shape.hidden)
        table = held.weight_table
        for index, (layer_spec, layer) in enumerate(zip(spec.layers, weights.layers, strict=True)):
            row = table[index]
            self._layer(layer, row)
            row[ROTATION], row[REACH] = rotations[layer_spec.rope], layer_spec.reach
            row[MIX_STAYS] = spec.norms_after
            row[NEXT_STAYS] = spec.norms_after or index + 1 == shape.layers
            report(LoadProgress(stage="packing weights", done=index + 1, total=shape.layers))
        table[shape.layers, [EMBEDDING_NORM, EMBEDDING_SHIFT]] = self._norm(weights.embedding_norm)

    def _layer(self, layer: EncoderLayer, row: Int64Array) -> None:
        shape, hidden = self._shape, self._hidden
        mlp = np.arange(len(layer.up[0].weight))
        starts = np.arange(3 * shape.heads) * shape.head_padded
        heads = (starts[:, None] + head_positions(shape.head_dim)).reshape(3, -1)  # of query, key and value
        ups = [mlp + part * shape.mlp_padded for part in range(len(layer.up))]
        sizes = layer_matrices(shape)
        self._matrix(row, QKV, layer.qkv, list(heads), hidden, *sizes[0])
        self._matrix(row, OUT, (layer.out,), [hidden], heads[0], *sizes[1])
        self._matrix(row, UP, layer.up, ups, hidden, *sizes[2])
        self._matrix(row, DOWN, (layer.down,), [hidden], mlp, *sizes[3])
        row[QKV_BIAS] = self._bias(layer.qkv, list(heads), shape.qkv_padded)
        row[UP_BIAS] = self._bias(layer.up, ups, shape.up_padded)
        row[MIX_BIAS] = self._bias((layer.out,), [hidden], shape.hidden_padded)
        row[NEXT_BIAS] = self._bias((layer.down,), [hidden], shape.hidden_padded)
        row[[MIX_NORM, MIX_SHIFT]] = self._norm(layer.mix_norm)
        row[[NEXT_NORM, NEXT_SHIFT]] = self._norm(layer.next_norm)

    def _matrix(
        self,
        row: Int64Array,
        column: int,
        parts: tuple[Affine, ...],
        channels: list[IndexArray],
        columns: IndexArray,
        size: int,
        k: int,
    ) -> None:
        """Pack the parts as one matrix, each at its channels; column and the next one get its addresses."""
        needed = packed_bytes(size, k, self._format)
        array = self._packed[self._used : self._used + needed]
        self._used += needed
        placed = [Part(part.weight, places) for part, places in zip(parts, channels, strict=True)]
        pack(array, placed, columns, size, k, self._format)
        row[column] = array.ctypes.data
        row[column + 1] = array.ctypes.data + panel_bytes(size, k, self._format)

    def _bias(self, parts: tuple[Affine, ...], channels: list[IndexArray], size: int) -> int:
        spread = np.zeros(size, np.float32)
        for part, places in zip(parts, channels, strict=True):
            if part.bias is not None:
                spread[places] = to_float32(part.bias)
        return self._keep(spread)

    def _norm(self, norm: Affine) -> tuple[int, int]:
        """The addresses of weight and shift."""
        weight = np.zeros(self._shape.hidden_padded, np.float32)
        weight[self._hidden] = to_float32(norm.weight)
        return self._keep(weight), self._bias((norm,), [self._hidden], self._shape.hidden_padded)

    def _keep(self, array: npt.NDArray[np.float32]) -> int:
        self._arrays.append(array)
        return array.ctypes.data


def _fill_places(spec: EncoderSpec, weights: EncoderWeights, places: npt.NDArray[np.float32]) -> None:
    """Row type * max_length + position: what is added to a token's embedding."""
    if weights.positions is None:
        return
    length, hidden = len(places) // spec.token_types, spec.hidden_size
    rows = places.reshape(spec.token_types, length, -1)
    rows[:, :, :hidden] = to_float32(weights.positions[spec.first_position :][:length])
    if weights.types is not None:
        rows[:, :, :hidden] += to_float32(weights.types)[:, None]


def _fill_rotations(
    spec: EncoderSpec, shape: EncoderShape, rotation: npt.NDArray[np.float32]
) -> dict[RopeSpec | None, int]:
    """A table for each of the spec's rotations, and their addresses; None's is one row that turns nothing."""
    positions, addresses = head_positions(spec.head_dim), dict[RopeSpec | None, int]()
    if not shape.rotation_stride:
        rotation[0, : shape.head_padded // 2] = 1
        return {None: rotation.ctypes.data}
    for rope in dict.fromkeys(layer.rope for layer in spec.layers):
        if rope is not None:
            start = len(addresses) * shape.max_length
            part = rotation[start : start + shape.max_length]
            part[:, positions] = rope_tables(rope, spec.head_dim, shape.max_length)
            addresses[rope] = part.ctypes.data
    return addresses
