"""Packing weights into the panels of tile.py, and the sizes of the packed arrays.

Input arrays are [out, in], float32 or uint16 holding bfloat16 bits, possibly memory-mapped. Their rows and columns
are placed at given positions of a zero-filled padded matrix; that is how sizes which are no multiple of a panel are
handled, and several matrices (query, key, value) become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..simd.formats import WEIGHT_BYTES, WeightFormat
from .tile import PANEL

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
IndexArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
CHUNK = 8 * PANEL  # channels converted at a time: bounds the float32 copies


class Part(NamedTuple):
    """One checkpoint matrix and the ascending channels of the packed matrix that its rows become."""

    weights: WeightArray
    channels: IndexArray


def padded(size: int, multiple: int = PANEL) -> int:
    return -(-size // multiple) * multiple


def panel_bytes(channels: int, k: int, weight_format: WeightFormat) -> int:
    """Size of the panels of a packed matrix of padded shape."""
    return channels * k * WEIGHT_BYTES[weight_format]


def packed_bytes(channels: int, k: int, weight_format: WeightFormat) -> int:
    """Size of a packed matrix: its panels and, for int8, the float32 scales of the channels behind them."""
    return panel_bytes(channels, k, weight_format) + (channels * 4 if weight_format == "int8" else 0)


def to_float32(values: WeightArray) -> FloatArray:
    """float32 values of an array that holds float32, or bfloat16 bits as uint16."""
    if values.dtype == np.uint16:
        widened: FloatArray = (values.astype(np.uint32) << 16).view(np.float32)
        return widened
    return np.ascontiguousarray(values, np.float32)


def to_bfloat16_bits(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Nearest even."""
    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)


def pack(
    target: ByteArray, parts: Sequence[Part], columns: IndexArray, channels: int, k: int, weight_format: WeightFormat
) -> None:
    """Fill target[: packed_bytes(...)]: column j of every part becomes position columns[j] of the k."""
    size = panel_bytes(channels, k, weight_format)
    panels = target[:size].view(np.uint32).reshape(channels // PANEL, -1, PANEL)
    scales = target[size:].view(np.float32)
    for start in range(0, channels, CHUNK):
        stop = min(channels, start + CHUNK)
        dense = np.zeros((stop - start, k), np.float32)
        for part in parts:
            first, last = np.searchsorted(part.channels, [start, stop])
            if first < last:
                dense[(part.channels[first:last] - start)[:, None], columns] = to_float32(part.weights[first:last])
        if weight_format == "float32":
            words = dense.view(np.uint32)
        elif weight_format == "bfloat16":
            words = to_bfloat16_bits(dense).view(np.uint32)
        else:
            words, scales[start:stop] = _quantise(dense)
        panels[start // PANEL : stop // PANEL] = words.reshape(-1, PANEL, words.shape[1]).transpose(0, 2, 1)


def _quantise(dense: FloatArray) -> tuple[npt.NDArray[np.uint32], FloatArray]:
    """Symmetric integers of one scale per channel, stored as w + 128, four in a word; and the scales."""
    largest = np.maximum(dense.max(axis=1), -dense.min(axis=1))
    scale = np.maximum(largest / 127, 1e-20).astype(np.float32)
    dense *= (1 / scale)[:, None]
    np.rint(dense, out=dense)
    np.clip(dense, -127, 127, out=dense)
    dense += 128
    return dense.astype(np.uint8).view(np.uint32), scale
