"""A bounded reader of one GGUF file, versions 2 and 3, memory-mapped.

Layout, little-endian: "GGUF", version u32, number of tensors u64, number of metadata pairs u64, the pairs, the tensors'
descriptions (name, dimensions fastest first, type, offset), then the data from the next multiple of the alignment.
Every count and every offset is checked before anything is built from it. Tensors may leave gaps, but must not overlap.
"""

from __future__ import annotations

import mmap
import struct
import sys
from math import prod
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...errors import CheckpointError
from ..files import open_file
from .metadata import MAX_KEYS, Cursor, Metadata
from .types import BLOCKS, TYPES

MAGIC: Final = b"GGUF"
MAX_TENSORS: Final = 1 << 15  # models have up to 2,000; with separate experts, 10,000
MAX_NAME_BYTES: Final = 128  # llama.cpp: 64
MAX_DIMENSIONS: Final = 4
MAX_SIZE: Final = 2**31 - 1  # of a dimension: kernels count in int32
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 16
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class PlacedTensor(Struct, frozen=True):
    """Where a tensor is in its file. `shape` is as elsewhere, slowest dimension first: [out, in]."""

    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GgufFile:
    """One open file. What `read` returns are views of the mapping, which they keep alive; read-only."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with open_file(folder, name) as file:
            size = file.seek(0, 2)
            if size < 24:
                raise CheckpointError("file", name, f"has {size} bytes: no GGUF file, or truncated")
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        cursor = Cursor(self._map, name)
        self._check_version(cursor)
        tensors = cursor.count(MAX_TENSORS, "number of tensors")
        self.metadata = Metadata(cursor, cursor.count(MAX_KEYS, "number of metadata pairs"))
        self.tensors = self._read_tensors(cursor, tensors)

    def read(self, tensor: str) -> memoryview:
        """The bytes of a tensor."""
        info = self.tensors[tensor]
        return memoryview(self._map)[info.begin : info.end]

    def release_pages(self) -> None:
        """Release the memory of what was read so far; reading it again loads it from the file."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)

    def _check_version(self, cursor: Cursor) -> None:
        if (magic := self._map[: len(MAGIC)]) != MAGIC:
            raise CheckpointError("file", self.name, f"begins with {magic!r}: not a GGUF file")
        cursor.advance(len(MAGIC), "magic")
        version = cursor.integer(_U32, "version")
        if version in (1 << 24, 2 << 24, 3 << 24):
            raise CheckpointError(
                f"{self.name}: byte order", "big-endian", "only little-endian files are read: convert it"
            )
        if version not in (2, 3):
            raise CheckpointError(f"{self.name}: version", version, "versions 2 and 3 are read: convert the model anew")

    def _read_tensors(self, cursor: Cursor, count: int) -> dict[str, PlacedTensor]:
        alignment = self._alignment()
        found = dict(self._describe(cursor, index, alignment) for index in range(count))
        if len(found) != count:
            raise CheckpointError(f"{self.name}: tensors", count, f"with {len(found)} names: a name occurs twice")
        start = -(-cursor.position // alignment) * alignment
        position, before = start, "the header"
        tensors: dict[str, PlacedTensor] = {}
        for name, info in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
            placed = PlacedTensor(info.type, info.shape, start + info.begin, start + info.end)
            if placed.begin < position:
                raise CheckpointError(f"{self.name}: {name}", info.begin, f"the offset is inside {before}: overlap")
            if placed.end > len(self._map):
                raise CheckpointError(
                    f"{self.name}: {name}", placed.end, f"ends beyond the {len(self._map)} bytes of the file: truncated"
                )
            tensors[name], position, before = placed, placed.end, name
        return tensors

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            raise CheckpointError("general.alignment", value, f"expected a power of two up to {MAX_ALIGNMENT}")
        return value

    def _describe(self, cursor: Cursor, index: int, alignment: int) -> tuple[str, PlacedTensor]:
        """A tensor's name and description, with offsets from the start of the data."""
        name = cursor.name(MAX_NAME_BYTES, f"name of tensor {index}")
        place = f"{self.name}: {name}"
        dimensions = cursor.integer(_U32, f"dimensions of {name}")
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(place, dimensions, f"dimensions, expected 1 to {MAX_DIMENSIONS}")
        shape = tuple(cursor.integer(_U64, name) for _ in range(dimensions))[::-1]
        number, offset = cursor.integer(_U32, name), cursor.integer(_U64, name)
        if any(not 0 < size <= MAX_SIZE for size in shape):
            raise CheckpointError(place, shape, f"a dimension is not between 1 and {MAX_SIZE}")
        if number not in TYPES:
            raise CheckpointError(place, number, "unknown type of tensor; is the file newer than this program?")
        elements, size = BLOCKS[TYPES[number]]
        if shape[-1] % elements:
            raise CheckpointError(place, shape, f"rows of {TYPES[number]} are multiples of {elements} long")
        if offset % alignment:
            raise CheckpointError(place, offset, f"the offset is no multiple of the alignment, {alignment}")
        return name, PlacedTensor(TYPES[number], shape, offset, offset + prod(shape) // elements * size)
