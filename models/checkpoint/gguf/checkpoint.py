"""A GGUF file as a checkpoint: its tensors by the family's own names, and in the family's own order of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from ...errors import CheckpointError
from ..families.families import spec_from_config
from ..generation import GenerationDefaults
from ..spec import ModelSpec
from ..stored import IndexArray, StoredMatrix, Weight
from .config import config_of
from .deepseek import KeysAndValues
from .generation import generation_of
from .matrix import QUANTISED, read_weight
from .names import Stored, names_of
from .parts import Gguf, stem


class GgufCheckpoint:
    """An opened file, or all parts of one. The header is read and checked at once, weights on demand."""

    def __init__(self, path: Path) -> None:
        self._file = Gguf(path)
        self.path = self._file.path
        config, row = config_of(self._file)
        spec = spec_from_config(config)
        self.spec: ModelSpec = replace(spec, norm_offset=0.0) if row.gain_offset else spec
        self.generation: GenerationDefaults = generation_of(self._file.metadata, self.spec.vocab_size)
        self._places = names_of(self._file.tensors, row, spec)

    @property
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""
        return [self.path.parent / part.name for part in self._file.parts]

    @property
    def name(self) -> str:
        return stem(self.path.name)

    @property
    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._places)

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def read_tensor(self, name: str) -> Weight:
        place = self._places[name]
        if place.values is not None:
            return self._keys_and_values(place, place.values)
        info, data = self._file.tensor(place.tensor), self._file.read(place.tensor)
        if place.expert is not None:
            size = len(data) // info.shape[0]
            data = data[place.expert * size : (place.expert + 1) * size]
        weight = read_weight(place.tensor, info.type, place.shape, data)
        return self._in_order(name, weight) if place.swapped else weight

    def stored_matrix(self, name: str) -> StoredMatrix | None:
        """A matrix that is stored quantised, without reading it; None for any other tensor."""
        place = self._places[name]
        tensors = (place.tensor,) if place.values is None else (place.tensor, place.values)
        if all(self._file.tensor(tensor).type not in QUANTISED for tensor in tensors):
            return None
        weight = self.read_tensor(name)
        return weight if isinstance(weight, StoredMatrix) else None

    def release_pages(self) -> None:
        """Give back the memory of weights that were read and are not in use; arrays stay valid."""
        self._file.release_pages()

    @property
    def dtype(self) -> str:
        """The type in which the weights are exact: "bfloat16" if most bytes are, else "float32"."""
        sizes = self.bytes_by_type()
        return "bfloat16" if sizes.get("BF16", 0) * 2 >= sum(sizes.values()) else "float32"

    @property
    def widened_bytes(self) -> int:
        """Bytes that float16 weights take when read as float32, in addition to a runner's own copies."""
        return 2 * self.bytes_by_type().get("F16", 0)

    @property
    def quantised(self) -> bool:
        """Whether most bytes are of quantised matrices."""
        sizes = self.bytes_by_type()
        return 2 * sum(size for kind, size in sizes.items() if kind in QUANTISED) > sum(sizes.values())

    def bytes_by_type(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for info in self._file.tensors.values():
            sizes[info.type] = sizes.get(info.type, 0) + info.end - info.begin
        return sizes

    def _keys_and_values(self, place: Stored, values: str) -> StoredMatrix:
        """Of latent attention, from two tensors of three dimensions."""
        parts = list[Weight]()
        for tensor in (place.tensor, values):
            info = self._file.tensor(tensor)
            heads, rows, columns = info.shape
            parts.append(read_weight(tensor, info.type, (heads * rows, columns), self._file.read(tensor)))
        return KeysAndValues(self._file.tensor(values).shape[0], *parts)

    def _in_order(self, name: str, weight: Weight) -> Weight:
        """Rows in halves again: the converter put those of a rotary pair side by side."""
        heads, rows = len(weight) // self.spec.head_dim, len(weight)
        if heads * self.spec.head_dim != rows:
            raise CheckpointError(name, rows, f"rows are no multiple of the head size, {self.spec.head_dim}")
        order: IndexArray = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return weight.ordered(order) if isinstance(weight, StoredMatrix) else weight[order]
