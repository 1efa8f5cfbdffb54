"""Packs weights into the panels of tile.py and tile_int4.py, and gives the sizes of the packed arrays.

Input arrays are [out, in], float32 or uint16 with bfloat16 bits, possibly memory-mapped. Their rows and columns are
placed at given positions of a zero-filled padded matrix. This handles sizes that are no multiple of 64, and merges
several matrices (query, key, value) into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..simd.formats import GROUP, GROUP_SHIFTS, TAGS, WEIGHT_BITS, WeightFormat
from .pack_int4 import pack_int4
from .tile import PANEL

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
IndexArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
MULTIPLE = 64  # sizes are padded to multiples of this
CHUNK = 8 * MULTIPLE  # channels converted at a time: bounds the float32 copies


class Part(NamedTuple):
    """One checkpoint matrix, and the channels (ascending) of the packed matrix for its rows."""

    weights: WeightArray
    channels: IndexArray


def padded(size: int, multiple: int = MULTIPLE) -> int:
    return -(-size // multiple) * multiple


def panel_bytes(channels: int, k: int, weight_format: WeightFormat) -> int:
    """Size of the panels of a packed matrix of padded shape."""
    return channels * k * WEIGHT_BITS[weight_format] // 8


def packed_bytes(channels: int, k: int, weight_format: WeightFormat) -> int:
    """Size of a packed matrix: its panels, followed by the scales."""
    inputs_of_a_scale = GROUP << GROUP_SHIFTS[weight_format] if weight_format in GROUP_SHIFTS else k
    return panel_bytes(channels, k, weight_format) + -(-k // inputs_of_a_scale) * scale_bytes(channels, weight_format)


def scale_bytes(channels: int, weight_format: str) -> int:
    """Size of the channels' scales: float32 for int8; with 4-bit weights bfloat16, for one group of inputs."""
    return channels * (2 if weight_format.startswith("int4") else 4 if weight_format == "int8" else 0)


def to_float32(values: WeightArray) -> FloatArray:
    """An array of float32, or of bfloat16 bits as uint16, as float32."""
    if values.dtype == np.uint16:
        widened: FloatArray = (values.astype(np.uint32) << 16).view(np.float32)
        return widened
    return np.ascontiguousarray(values, np.float32)


def to_bfloat16_bits(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Rounds to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)


def pack(
    target: ByteArray, parts: Sequence[Part], columns: IndexArray, channels: int, k: int, weight_format: WeightFormat
) -> None:
    """Fill target[: packed_bytes(...)]: column j of every part goes to position columns[j] of k.

    The target must start at a cache line.
    """
    size = panel_bytes(channels, k, weight_format)
    for start in range(0, channels, CHUNK):
        stop = min(channels, start + CHUNK)
        dense = np.zeros((stop - start, k), np.float32)
        for part in parts:
            first, last = np.searchsorted(part.channels, [start, stop])
            if first < last:
                rows = part.channels[first:last] - start
                _place(dense, rows, columns, to_float32(part.weights[first:last]))
        place = panel_bytes(start, k, weight_format)
        scales = target[size + packed_bytes(start, k, weight_format) - place :]
        panels = target[place : panel_bytes(stop, k, weight_format)]
        if weight_format == "int4" or weight_format == "int4-128":
            shift = GROUP_SHIFTS[weight_format]
            pack_int4(
                TAGS[weight_format], dense.ctypes.data, stop - start, k, panels.ctypes.data, scales.ctypes.data, shift
            )
            continue
        if weight_format == "float32":
            words = dense.view(np.uint32)
        elif weight_format == "bfloat16":
            words = to_bfloat16_bits(dense).view(np.uint32)
        else:
            words, scales.view(np.float32)[: stop - start] = _quantise(dense)
        target_words = panels.view(np.uint32).reshape((stop - start) // PANEL, -1, PANEL)
        target_words[:] = words.reshape(-1, PANEL, words.shape[1]).transpose(0, 2, 1)


def _place(dense: FloatArray, rows: IndexArray, columns: IndexArray, values: FloatArray) -> None:
    """dense[rows, columns] = values. Places without gaps, the usual case, are twelve times as fast by slices."""
    row, column = int(rows[0]), int(columns[0])
    if np.array_equal(rows, np.arange(row, row + len(rows))) and np.array_equal(
        columns, np.arange(column, column + len(columns))
    ):
        dense[row : row + len(rows), column : column + len(columns)] = values
    else:
        dense[rows[:, None], columns] = values


def _quantise(dense: FloatArray) -> tuple[npt.NDArray[np.uint32], FloatArray]:
    """Symmetric integers with one scale per channel, stored as w + 128, four per word; and the scales."""
    largest = np.maximum(dense.max(axis=1), -dense.min(axis=1))
    scale = np.maximum(largest / 127, 1e-20).astype(np.float32)
    dense *= (1 / scale)[:, None]
    np.rint(dense, out=dense)
    np.clip(dense, -127, 127, out=dense)
    dense += 128
    return dense.astype(np.uint8).view(np.uint32), scale
