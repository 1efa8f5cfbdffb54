"""A checkpoint folder as Hugging Face writes it: config.json, weights (one file or shards), tokenizer files.

Provides names, shapes and arrays. It never runs code from the folder, and never unpickles.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
from msgspec.structs import replace

from .experts import names_beside_fused
from .families.families import load_spec
from .files import folder_of, read_json
from .fused import ExpertPiece, fused_experts
from .generation import GenerationDefaults, read_generation
from .quantised.method import Quantised, read_quantised
from .safetensors import TensorFile
from .spec import ModelSpec
from .stored import StoredMatrix, Weight
from .weight_files import open_weights

MAX_CONFIG_BYTES = 4 << 20


class TensorFolder:
    """The opened weight files of a folder. Headers are read and checked at once, weights on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._home = open_weights(folder)
        self._quantised = Quantised({}, frozenset())
        self._pieces = dict[str, ExpertPiece]()  # of tensors that hold all experts of a layer

    @property
    def path(self) -> Path:
        return self.folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def tensor_names(self) -> frozenset[str]:
        parts = self._quantised.parts | {piece.tensor for piece in self._pieces.values()}
        return frozenset(self._home) - parts | frozenset(self._quantised.matrices) | frozenset(self._pieces)

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        if (matrix := self.stored_matrix(name)) is not None:
            return matrix.shape
        if (piece := self._pieces.get(name)) is not None:
            return piece.shape(self._home[piece.tensor].tensors[piece.tensor].shape)
        return self._home[name].tensors[name].shape

    def read_tensor(self, name: str) -> Weight:
        if (matrix := self.stored_matrix(name)) is not None:
            return matrix
        if (piece := self._pieces.get(name)) is not None:
            return self._home[piece.tensor].read(piece.tensor, piece.of)
        return self._home[name].read(name)

    @property
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""
        return sorted({self.folder / file.name for file in self._home.values()})

    def stored_matrix(self, name: str) -> StoredMatrix | None:
        """A matrix that is stored quantised, without reading it; None for any other tensor."""
        return self._quantised.matrices.get(name)

    def release_pages(self) -> None:
        """Give back the memory of weights that were read and are not in use; arrays stay valid."""
        for file in set(self._home.values()):
            file.release_pages()

    @property
    def dtype(self) -> str:
        """The type of most weight bytes: "bfloat16" or "float32" (also for float16, which is widened)."""
        size = {"BF16": 0, "other": 0}
        for name, file in self._plain():
            info = file.tensors[name]
            size["BF16" if info.dtype == "BF16" else "other"] += info.end - info.begin
        return "bfloat16" if size["BF16"] >= size["other"] else "float32"

    @property
    def widened_bytes(self) -> int:
        """Bytes of weights that are copied when they are read, in addition to a runner's own copies."""
        return sum(file.tensors[name].copied_bytes for name, file in self._plain())

    def _plain(self) -> Iterator[tuple[str, TensorFile]]:
        """Tensors that are weights as they are."""
        return ((name, file) for name, file in self._home.items() if name not in self._quantised.parts)


class _Files:
    """The tensors of a folder, for those who know what they are parts of."""

    def __init__(self, home: dict[str, TensorFile]) -> None:
        self._home = home

    def names(self) -> Iterator[str]:
        return iter(self._home)

    def raw(self, name: str) -> npt.NDArray[Any]:
        return self._home[name].raw(name)


class CheckpointFolder(TensorFolder):
    """An opened checkpoint of a decoder."""

    def __init__(self, path: Path, *, headless: bool = False) -> None:
        """`headless`: it may be a model without its LM head, for those who need no logits."""
        folder = folder_of(path)
        self.spec: ModelSpec = load_spec(folder, headless=headless)
        self.generation: GenerationDefaults = read_generation(folder, self.spec.vocab_size)
        super().__init__(folder)
        self._quantised = read_quantised(read_json(folder, "config.json", MAX_CONFIG_BYTES), _Files(self._home))
        if self.spec.experts is not None:
            shapes = {name: file.tensors[name].shape for name, file in self._home.items()}
            self._pieces = fused_experts(shapes, self.spec.experts)
            if self._pieces:
                names = names_beside_fused(self.spec.experts.names)
                self.spec = replace(self.spec, experts=replace(self.spec.experts, names=names))
