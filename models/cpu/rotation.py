"""The rotary tables of a CPU runner: one for each distinct rotation of the layers, keys and queries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.shape import QUERY_ROTATION, ROTATION, Int64Array
from ...kernels.rope.cpu import head_positions
from ..checkpoint.rope import RopeSpec, query_scales, rope_tables
from ..checkpoint.spec import LayerSpec, ModelSpec

Table = tuple[RopeSpec | None, bool]  # the rotation, and whether queries grow with their position in it


def tables_of(layer: LayerSpec) -> tuple[Table, Table]:
    """Of its keys, of its queries."""
    return (layer.rope, False), (layer.rope, layer.rope is not None and layer.rope.query_growth > 0)


def rotations(spec: ModelSpec) -> list[Table]:
    """The distinct ones."""
    return list(dict.fromkeys(table for layer in spec.layers for table in tables_of(layer)))


def fill_rotations(spec: ModelSpec, arrays: npt.NDArray[np.float32], weight_table: Int64Array) -> None:
    """Fill arrays [tables, max_length, padded turned_dim] and write each layer's addresses to the weight table.

    Cosines and sines go to the padded halves of a head; the padding stays zero.
    """
    tables, length = rotations(spec), arrays.shape[1]
    for array, (rope, grows) in zip(arrays, tables, strict=True):
        values = rope_tables(rope, spec.turned_dim, length, spec.rotary_dim)
        array[:, head_positions(spec.turned_dim)] = values * query_scales(rope, length)[:, None] if grows else values
    for row, layer in zip(weight_table, spec.layers, strict=False):  # the last row is the head's
        for column, table in zip((ROTATION, QUERY_ROTATION), tables_of(layer), strict=True):
            row[column] = arrays[tables.index(table)].ctypes.data
