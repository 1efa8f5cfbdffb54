"""Packs weights into the panels of tile.py and tile_int4.py, and gives the sizes of the packed arrays.

Input arrays are [out, in], float32 or uint16 with bfloat16 bits, possibly memory-mapped. Their rows and columns are
placed at given positions of a zero-filled padded matrix. This handles sizes that are no multiple of 64, and merges
several matrices (query, key, value) into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..simd.formats import GROUP, GROUP_SHIFTS, TAGS, WEIGHT_BITS, WeightFormat
from .pack_panels import pack_panels
from .tile import PANEL

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
IndexArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
Each = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
MULTIPLE = 64  # sizes are padded to multiples of this
CHUNK = 4 * MULTIPLE  # channels packed at a time: a thread takes as many as that


class Rows(Protocol):
    """A matrix in a format of its own, which gives its rows as float32."""

    def __len__(self) -> int: ...

    def rows(self, first: int, last: int) -> FloatArray: ...


class Part(NamedTuple):
    """One checkpoint matrix, and the channels of the packed matrix, in any order, for its rows."""

    weights: WeightArray | Rows
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


def pack(
    target: ByteArray,
    parts: Sequence[Part],
    columns: IndexArray,
    channels: int,
    k: int,
    weight_format: WeightFormat,
    each: Each = map,
) -> None:
    """Fill target[: packed_bytes(...)]: column j of every part goes to position columns[j] of k.

    The target must start at a cache line. `each` runs a function on several values, in any order or at the same time.
    """
    size = panel_bytes(channels, k, weight_format)

    def pack_chunk(start: int) -> None:
        stop = min(channels, start + CHUNK)
        sources, halves = np.zeros((2, stop - start), np.int64)
        kept = list[WeightArray]()  # as long as their addresses are used
        for part in parts:
            wanted = np.flatnonzero((part.channels >= start) & (part.channels < stop))
            if len(wanted):
                first = int(wanted[0])
                rows, here = _whole_rows(part.weights, first, int(wanted[-1]) + 1), part.channels[wanted] - start
                kept.append(rows)
                sources[here] = rows.ctypes.data + (wanted - first) * rows.strides[0]
                halves[here] = rows.dtype == np.uint16
        place = panel_bytes(start, k, weight_format)
        pack_panels(
            TAGS[weight_format],
            sources,
            halves,
            columns,
            k,
            GROUP_SHIFTS.get(weight_format, 0),
            target[place:].ctypes.data,
            target[size + packed_bytes(start, k, weight_format) - place :].ctypes.data,
            np.zeros((PANEL + 2, k), np.float32),
            np.zeros(len(columns), np.float32),
        )

    for _ in each(pack_chunk, range(0, channels, CHUNK)):
        pass


def _whole_rows(weights: WeightArray | Rows, first: int, last: int) -> WeightArray:
    """Rows first to last - 1, each contiguous."""
    values = weights[first:last] if isinstance(weights, np.ndarray) else weights.rows(first, last)
    return values if values.strides[1] == values.itemsize else values.copy()
