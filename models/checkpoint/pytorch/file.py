"""A bounded reader of one file of torch.save with a dict of tensors, memory-mapped: `pytorch_model.bin`, `model.pt`.

Two layouts. Since torch 1.6 a zip archive: `NAME/data.pkl` describes the tensors, `NAME/data/KEY` are their storages.
Before, five pickles (a magic number, a version, the machine, the tensors, the storages' keys), and behind them each
storage with the number of its elements in front. Neither is unpickled: machine.py reads them. Checksums are not
computed, which would take reading the weights twice; a file from the hub is checked when it comes.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import ValidationError, convert

from ...errors import CheckpointError, UnsupportedModel
from ..files import open_file
from ..safetensors import ITEM_BYTES, STORED_TYPES, Part, TensorInfo, WeightArray, read_weight
from .archive import RECORD_MARK, ArchiveRecord, read_archive
from .machine import PickleMachine
from .tensors import TensorMeaning, TensorView, named_views

LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PICKLE_MARK: Final = 0x80
_LEAST_BYTES: Final = 16
_COUNT_BYTES: Final = 8  # of the number in front of a storage in the old layout


class ViewInfo(TensorInfo, frozen=True):
    """A tensor: `begin` is its first element, and `end - begin` the bytes of its elements, wherever they are."""

    strides: tuple[int, ...] | None = None  # in bytes, where the elements do not follow each other

    @property
    def copied_bytes(self) -> int:
        return super().copied_bytes + (0 if self.strides is None else self.end - self.begin)


class PytorchFile:
    """One open file. Arrays are views of the mapping, which they keep alive, or copies of strided ones."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with open_file(folder, name) as file:
            size = file.seek(0, 2)
            if size < _LEAST_BYTES:
                raise CheckpointError("file", name, f"has {size} bytes: no file of torch.save, or truncated")
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        meaning = TensorMeaning(name)
        if self._map[:4] == RECORD_MARK:
            views, records = self._read_archive(meaning)
        elif self._map[0] == _PICKLE_MARK:
            views, records = self._read_legacy(meaning)
        else:
            begin = self._map[:16]
            raise CheckpointError("file", name, f"begins with {begin!r}: no file of torch.save, or damaged")
        self.tensors: dict[str, ViewInfo] = {name: _placed(view, records) for name, view in views.items()}

    def read(self, tensor: str, part: Part | None = None) -> WeightArray:
        return read_weight(self, tensor, part)

    def raw(self, tensor: str, part: Part | None = None) -> npt.NDArray[Any]:
        """The tensor in its own type: bfloat16 and 8-bit floats as the unsigned integers of their bits."""
        info = self.tensors[tensor]
        if info.dtype not in STORED_TYPES:
            raise CheckpointError(f"{self.name}: {tensor}", info.dtype, "no weight has parts of this type")
        kind = np.dtype(STORED_TYPES[info.dtype])
        if info.begin == info.end:
            empty = np.zeros(info.shape, kind)
            return empty if part is None else part(empty)
        array = np.ndarray(info.shape, kind, self._map, info.begin, info.strides)
        array.flags.writeable = False
        array = array if part is None else part(array)
        # Compiled kernels must never see elements that are unaligned or apart.
        return array if array.flags.aligned and info.strides is None else array.copy()

    def release_pages(self) -> None:
        """Release the memory of what was read so far; reading it again loads it from the file."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)

    def _read_archive(self, meaning: TensorMeaning) -> tuple[dict[str, TensorView], dict[str, ArchiveRecord]]:
        records = read_archive(self._map, self.name)
        pickles = [name for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise CheckpointError("file", self.name, "an archive without one NAME/data.pkl: not of torch.save")
        prefix = pickles[0].removesuffix("data.pkl")
        if f"{prefix}constants.pkl" in records:
            raise UnsupportedModel("file", self.name, "is a TorchScript program, not a file of tensors")
        order = records.get(f"{prefix}byteorder")
        if order is not None and (said := self._map[order.begin : min(order.end, order.begin + 8)]) != b"little":
            raise UnsupportedModel(f"{self.name}: byteorder", said, "only little-endian files are read: convert it")
        pickle = records[pickles[0]]
        machine = PickleMachine(self._map, pickle.begin, pickle.end, self.name, meaning)
        views = named_views(machine.run(), self.name)
        found: dict[str, ArchiveRecord] = {}
        for key, storage in meaning.storages.items():
            record = records.get(f"{prefix}data/{key}")
            if record is None:
                raise CheckpointError(f"{self.name}: data/{key:.100}", None, "this storage is missing: damaged")
            if record.end - record.begin != storage.bytes:
                size = record.end - record.begin
                raise CheckpointError(
                    f"{self.name}: data/{key:.100}", size, f"bytes, expected {storage.bytes}: damaged"
                )
            found[key] = record
        return views, found

    def _read_legacy(self, meaning: TensorMeaning) -> tuple[dict[str, TensorView], dict[str, ArchiveRecord]]:
        position, values, end = 0, list[object](), len(self._map)
        for _ in range(5):
            machine = PickleMachine(self._map, position, end, self.name, meaning)
            values.append(machine.run())
            position = machine.position
            if values[0] != LEGACY_MAGIC:
                raise UnsupportedModel("file", self.name, "is a pickle, but not of torch.save")
        _, version, system, tensors, listed = values
        if version != 1001:
            raise UnsupportedModel(f"{self.name}: protocol", type(version).__name__, "expected 1001: save it anew")
        try:
            little = convert(system, dict[str, object]).get("little_endian")
            keys = convert(listed, list[str])
        except ValidationError as error:
            raise CheckpointError("file", self.name, f"its list of storages: {error}") from None
        if little is not True:
            raise UnsupportedModel(
                f"{self.name}: little_endian", False, "only little-endian files are read: convert it"
            )
        views = named_views(tensors, self.name)
        records: dict[str, ArchiveRecord] = {}
        for key in keys:
            storage = meaning.storages.get(key)
            if storage is None or key in records:
                raise CheckpointError(f"{self.name}: storages", key, "no tensor has it, or it occurs twice: damaged")
            begin = position + _COUNT_BYTES
            position = begin + storage.bytes
            if position > end:
                raise CheckpointError(f"{self.name}: {key}", storage.bytes, "bytes go beyond the file: truncated")
            if int.from_bytes(self._map[begin - _COUNT_BYTES : begin], "little") != storage.elements:
                raise CheckpointError(
                    f"{self.name}: {key}", storage.elements, "elements, and its data say otherwise: damaged"
                )
            records[key] = ArchiveRecord(begin, position)
        if position != end or records.keys() != meaning.storages.keys():
            raise CheckpointError("file", self.name, "its storages are not those that its tensors need: damaged")
        return views, records


def _placed(view: TensorView, records: dict[str, ArchiveRecord]) -> ViewInfo:
    size = ITEM_BYTES[view.type]
    begin = records[view.storage.key].begin + view.offset * size
    bytes_ = size
    for count in view.shape:
        bytes_ *= count
    strides = None if view.whole or bytes_ == 0 else tuple(stride * size for stride in view.strides)
    return ViewInfo(view.type, view.shape, begin, begin + bytes_, strides)
