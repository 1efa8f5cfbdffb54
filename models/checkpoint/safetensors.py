"""A strict, bounded reader of one safetensors file: memory-mapped, as numpy arrays.

Layout: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data. Stricter
than the format's own library: no duplicate names, header of at most 16 MiB, and the tensors must tile the data exactly
(no gap, no overlap, nothing after the end). bfloat16 comes as uint16 bit patterns, since numpy has no such type.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, ValidationError, convert

from ..errors import CheckpointError
from .files import open_file, parse_object

MAX_HEADER_BYTES = 16 << 20  # 100,000 tensors need about 12 MB
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
WEIGHT_TYPES = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16}

STORED_TYPES = WEIGHT_TYPES | {
    "I8": np.int8, "U8": np.uint8, "F8_E4M3": np.uint8, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_,
}  # fmt: skip

WeightArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
Part = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]  # a view
Natural = Annotated[int, Meta(ge=0, lt=2**53)]


class HeaderEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as the header describes it."""

    dtype: str
    shape: Annotated[tuple[Natural, ...], Meta(max_length=8)]
    data_offsets: tuple[Natural, Natural]


class TensorInfo(Struct, frozen=True):
    """Where a tensor is in its file's data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def copied_bytes(self) -> int:
        """Of the copy that reading it as a weight makes: float16 becomes float32."""
        return 2 * (self.end - self.begin) if self.dtype == "F16" else 0


class TensorFile(Protocol):
    """An open file of tensors. Arrays are read-only, and views of its mapping where they can be."""

    name: str

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def read(self, tensor: str, part: Part | None = None) -> WeightArray:
        """The tensor as a weight. `part` takes what is wanted of a large one, before anything is copied."""
        ...

    def raw(self, tensor: str, part: Part | None = None) -> npt.NDArray[Any]:
        """The tensor in its own type: bfloat16 and 8-bit floats as the unsigned integers of their bits."""
        ...

    def release_pages(self) -> None:
        """Release the memory of what was read so far; reading it again loads it from the file."""
        ...


class SafetensorsFile:
    """One open file. Arrays are views of the mapping and keep it alive; they are read-only."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with open_file(folder, name) as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(
                    name, length, f"bytes of header in a file of {size} bytes, and at most 16 MiB: damaged"
                )
            header = parse_object(file.read(length), name)
            self.data_start = 8 + length
            self.tensors = _read_header(header, size - self.data_start, name)
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def read(self, tensor: str, part: Part | None = None) -> WeightArray:
        return read_weight(self, tensor, part)

    def raw(self, tensor: str, part: Part | None = None) -> npt.NDArray[Any]:
        """The tensor in its own type: bfloat16 and 8-bit floats as the unsigned integers of their bits."""
        info = self.tensors[tensor]
        if info.dtype not in STORED_TYPES:
            raise CheckpointError(f"{self.name}: {tensor}", info.dtype, "no quantised weight has parts of this type")
        data = memoryview(self._map)[self.data_start + info.begin : self.data_start + info.end]
        array = np.frombuffer(data, STORED_TYPES[info.dtype]).reshape(info.shape)
        if part is not None:
            array = part(array)
        # A header of odd length leaves the data unaligned, which compiled kernels must never see.
        return array if array.flags.aligned else array.copy()

    def release_pages(self) -> None:
        """Release the memory of what was read so far; reading it again loads it from the file."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)


def countable(shape: tuple[int, ...]) -> bool:
    """Whether numpy can count such a tensor's elements; it multiplies the sizes beside a 0 too."""
    return prod(max(size, 1) for size in shape) < 2**53


def read_weight(file: TensorFile, tensor: str, part: Part | None = None) -> WeightArray:
    """float32 (float16 is widened) or uint16 holding bfloat16 bits. Only these three types are weights."""
    dtype = file.tensors[tensor].dtype
    if dtype not in WEIGHT_TYPES:
        raise CheckpointError(f"{file.name}: {tensor}", dtype, "expected a weight of type F32, BF16 or F16")
    array = file.raw(tensor, part)
    return array.astype(np.float32) if dtype == "F16" else cast("WeightArray", array)


def _read_header(header: Mapping[str, object], data_bytes: int, file: str) -> dict[str, TensorInfo]:
    metadata = header.get("__metadata__", {})
    try:
        convert(metadata, dict[str, str])
    except ValidationError as error:
        raise CheckpointError(f"{file}: __metadata__", metadata, str(error)) from None
    tensors = {name: _read_entry(name, entry, file) for name, entry in header.items() if name != "__metadata__"}
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != position:
            raise CheckpointError(f"{file}: {name}", info.begin, f"begins here, not at {position}: hole or overlap")
        position = info.end
    if position != data_bytes:
        raise CheckpointError(file, data_bytes, f"bytes of data, expected {position}: the file is truncated or damaged")
    return tensors


def _read_entry(name: str, entry: object, file: str) -> TensorInfo:
    place = f"{file}: {name}"
    try:
        found = convert(entry, HeaderEntry)
    except ValidationError as error:
        raise CheckpointError(place, entry, str(error)) from None
    if found.dtype not in ITEM_BYTES:
        raise CheckpointError(place, found.dtype, "unknown tensor type")
    begin, end = found.data_offsets
    if end - begin != prod(found.shape) * ITEM_BYTES[found.dtype] or not countable(found.shape):
        raise CheckpointError(place, entry, "the offsets do not hold a tensor of this type and shape")
    return TensorInfo(found.dtype, found.shape, begin, end)


def to_float32(array: WeightArray) -> npt.NDArray[np.float32]:
    """bfloat16, which comes as uint16, is the upper half of a float32, so widening is a shift."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)
