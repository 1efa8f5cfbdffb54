"""Packs codes and scales as a checkpoint has them into the panels of tile_stored.py; nothing is rounded.

Weights of no such layout (float, or codes whose inputs are spread by the padding of heads) become 16-bit integers with
a bfloat16 scale per 32 inputs: the step is at most 1 / 32,000 of the group's largest weight, finer than 11 bits of a
float16 wherever a weight is at least a sixteenth of that. Two segments hold them, high bytes and low bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..simd.formats import GROUP
from .codes import SUPERBLOCK, CodeLayout, CodeRows
from .pack import ByteArray, Each, FloatArray, IndexArray, Part, to_float32
from .segments import (
    MINIMUM_KINDS,
    MINIMUM_STRIDES,
    ONE_SCALE,
    SCALE_KINDS,
    SCALE_STRIDES,
    SEGMENT_BYTES,
    SEGMENTS_START,
    UPPER_STRIDE,
    rows_of_scales,
)
from .tile import PANEL
from .tile_fp4 import BITS_OF_CODES, packed_bits
from .tile_fp4 import ZERO as FP4_ZERO

WIDE = CodeLayout(8, GROUP, "bfloat16")  # of each half of a 16-bit integer
WIDEST = 127 * 256  # so that the high byte, rounded, is one too
CHUNK = 32  # panels packed at a time
LINE = 64


@runtime_checkable
class Coded(Protocol):
    """A matrix that gives its codes."""

    @property
    def layout(self) -> CodeLayout: ...

    def codes(self, first: int, last: int) -> CodeRows: ...


class Planned(NamedTuple):
    """A segment to be packed: panels of one part."""

    part: Part
    layout: CodeLayout
    first_panel: int
    panels: int
    own: bool  # the part's own codes; else one of the two of 16-bit integers
    add: int  # 1: the low bytes


def runs_as_stored(layout: CodeLayout, inputs: int) -> bool:
    """Whether the kernel has this layout: groups of 32 times a power of two, of 16 with 6 bits, or one for all."""
    if layout.group >= inputs:
        return True
    blocks, rest = divmod(layout.group, GROUP)
    return (layout.group == 16 and layout.bits == 6) or (rest == 0 and blocks & (blocks - 1) == 0)


def plan_segments(parts: Sequence[Part], columns: IndexArray, channels: int) -> list[Planned]:
    planned = list[Planned]()
    starts = [int(part.channels.min()) // PANEL for part in parts] + [channels // PANEL]
    in_order = np.array_equal(columns, np.arange(len(columns)))
    for part, first, following in zip(parts, starts, starts[1:], strict=False):
        matrix = part.weights
        first = 0 if part is parts[0] else first
        if isinstance(matrix, Coded) and in_order and runs_as_stored(matrix.layout, len(columns)):
            planned.append(Planned(part, matrix.layout, first, following - first, True, 0))
        else:
            planned += [Planned(part, WIDE, first, following - first, False, add) for add in (0, 1)]
    return planned


def _sizes(planned: Planned, k: int) -> list[int]:
    """Bytes of the codes, scales, upper scales, minima and upper minima, each a whole number of cache lines."""
    layout, panels = planned.layout, planned.panels
    rows, uppers = rows_of_scales(k, layout.group), rows_of_scales(k, SUPERBLOCK)
    sizes = [
        k * PANEL * packed_bits(layout) // 8,
        rows * SCALE_STRIDES[layout.scales],
        uppers * UPPER_STRIDE if layout.scales == "two-level" else 0,
        rows * MINIMUM_STRIDES[layout.minima],
        uppers * UPPER_STRIDE if layout.minima == "two-level" else 0,
    ]
    return [-(-panels * size // LINE) * LINE for size in sizes]


def stored_bytes(parts: Sequence[Part], columns: IndexArray, channels: int, k: int) -> int:
    """Size of the packed matrix, its table included."""
    planned = plan_segments(parts, columns, channels)
    return _table_bytes(planned) + sum(sum(_sizes(segment, k)) for segment in planned)


def _table_bytes(planned: Sequence[Planned]) -> int:
    return SEGMENTS_START + SEGMENT_BYTES * len(planned)


def pack_stored(
    target: ByteArray, parts: Sequence[Part], columns: IndexArray, channels: int, k: int, each: Each = map
) -> None:
    """Fill target[: stored_bytes(...)]: column j of every part goes to position columns[j] of k.

    The target must be zeros and start at a cache line; its first bytes become the table. `each` runs a function on
    several values, in any order or at the same time.
    """
    planned = plan_segments(parts, columns, channels)
    table = target[: _table_bytes(planned)].view(np.int64)
    table[0] = len(planned)
    used = table.nbytes
    for number, segment in enumerate(planned):
        layout, arrays, places = segment.layout, list[ByteArray](), list[int]()
        begin = SEGMENTS_START + number * SEGMENT_BYTES
        for size in _sizes(segment, k):
            arrays.append(target[used : used + size])
            places.append(used - begin)
            used += size
        one, in_4_bits = layout.group >= k, packed_bits(layout) < layout.bits
        fields = [segment.first_panel, segment.panels, packed_bits(layout), *places]
        fields += [SCALE_KINDS[layout.scales], SCALE_STRIDES[layout.scales]]
        fields += [MINIMUM_KINDS[layout.minima], MINIMUM_STRIDES[layout.minima]]
        fields += [ONE_SCALE if one else max(layout.group // GROUP, 1).bit_length() - 1, int(layout.group < GROUP)]
        fields += [FP4_ZERO if in_4_bits else layout.middle, segment.add, int(in_4_bits)]
        table[begin // 8 : begin // 8 + len(fields)] = fields
        for _ in each(partial(_fill, segment, arrays, columns, k), range(0, segment.panels, CHUNK)):
            pass


def _fill(segment: Planned, arrays: Sequence[ByteArray], columns: IndexArray, k: int, begin: int) -> None:
    """Panels `begin` to begin + CHUNK - 1 of a segment."""
    layout, part = segment.layout, segment.part
    scales, uppers = rows_of_scales(k, layout.group), rows_of_scales(k, SUPERBLOCK)
    of_part = part.channels - segment.first_panel * PANEL
    end = min(begin + CHUNK, segment.panels)
    rows = np.flatnonzero((of_part >= begin * PANEL) & (of_part < end * PANEL))
    if not len(rows):
        return
    first, last = int(rows[0]), int(rows[-1]) + 1
    if segment.own:
        assert isinstance(part.weights, Coded)
        found = part.weights.codes(first, last)
    else:
        weights = part.weights
        plain = to_float32(weights[first:last]) if isinstance(weights, np.ndarray) else weights.rows(first, last)
        found = _half_of_wide(plain, columns, k, segment.add)
    if len(rows) < last - first:
        found = found.picked(rows - first)
    in_4_bits = packed_bits(layout) < layout.bits
    words = _words(packed_bits(layout), BITS_OF_CODES[found.codes] if in_4_bits else found.codes, k)
    of_panels = (words, found.scales, found.upper_scales, found.minima, found.upper_minima)
    widths = (words.shape[1], scales, uppers, scales, uppers)
    places = of_part[rows] - begin * PANEL
    for array, values, width in zip(arrays, of_panels, widths, strict=True):
        if values is not None:
            lanes = np.zeros(((end - begin) * PANEL, width), values.dtype)
            lanes[places, : values.shape[1]] = values
            panels = array.view(values.dtype)[begin * PANEL * width : end * PANEL * width]
            panels.reshape(end - begin, width, PANEL)[:] = lanes.reshape(-1, PANEL, width).transpose(0, 2, 1)


def _words(bits: int, codes: npt.NDArray[np.uint8], k: int) -> npt.NDArray[np.uint32]:
    """The 32-bit words of each channel in the order of the panel's vectors: tile_stored.py."""
    codes = np.pad(codes, ((0, 0), (0, k - codes.shape[1])))
    if bits == 8:
        return np.ascontiguousarray(codes).view(np.uint32)
    halves = codes.reshape(len(codes), -1, 2, GROUP // 2)
    packed = (halves[:, :, 0] & 15) | (halves[:, :, 1] << 4)
    words = np.ascontiguousarray(packed).view(np.uint32)  # [N, groups, 4]
    if bits == 6:
        quads = (codes >> 4).reshape(len(codes), -1, 2, 4, 4)
        upper = quads[:, :, :, 0] | (quads[:, :, :, 1] << 2) | (quads[:, :, :, 2] << 4) | (quads[:, :, :, 3] << 6)
        words = np.concatenate([words, np.ascontiguousarray(upper).view(np.uint32)[..., 0]], axis=2)
    return words.reshape(len(codes), -1)


def _half_of_wide(values: FloatArray, columns: IndexArray, k: int, add: int) -> CodeRows:
    """The high or the low bytes of 16-bit integers: weight = scale * (256 * high + low)."""
    dense = np.zeros((len(values), k), np.float32)
    dense[:, columns] = values
    groups = dense.reshape(len(values), -1, GROUP)
    # The next bfloat16 above the quotient: one below would need larger integers.
    least = np.maximum(np.abs(groups).max(axis=2) / np.float32(WIDEST), np.float32(1e-35))
    scales = (least.view(np.uint32) >> 16).astype(np.uint16) + np.uint16(1)
    inverse = 1 / (scales.astype(np.uint32) << 16).view(np.float32)
    integers = np.rint(groups * inverse[..., None]).astype(np.int32)
    high = (integers + 128) >> 8
    half = integers - (high << 8) if add else high
    upper = scales if add else scales + np.uint16(8 << 7)  # times 256
    return CodeRows((half + 128).astype(np.uint8).reshape(len(values), -1), upper)
