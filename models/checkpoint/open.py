"""What a checkpoint is to those that load it, and the one way to open one: a folder or a GGUF file."""

from pathlib import Path
from typing import Protocol

from .checkpoint import CheckpointFolder
from .generation import GenerationDefaults
from .gguf.checkpoint import GgufCheckpoint
from .spec import ModelSpec
from .stored import StoredMatrix, Weight


class Checkpoint(Protocol):
    """An opened checkpoint. Headers are read and checked at once, weights on demand."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def generation(self) -> GenerationDefaults: ...
    @property
    def path(self) -> Path:
        """The folder or the file."""
        ...

    @property
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def tensor_names(self) -> frozenset[str]: ...
    @property
    def dtype(self) -> str:
        """The type in which the weights are exact: "bfloat16" or "float32"."""
        ...

    @property
    def widened_bytes(self) -> int:
        """Bytes of weights that are copied when they are read, in addition to a runner's own copies."""
        ...

    def tensor_shape(self, name: str) -> tuple[int, ...]: ...
    def read_tensor(self, name: str) -> Weight: ...
    def stored_matrix(self, name: str) -> StoredMatrix | None:
        """A matrix that is stored quantised, without reading it; None for any other tensor."""
        ...

    def release_pages(self) -> None:
        """Give back the memory of weights that were read and are not in use; arrays stay valid."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Raises CheckpointError for what is damaged, UnsupportedModel for what the decoder does not do."""
    return GgufCheckpoint(path) if path.suffix == ".gguf" and not path.is_dir() else CheckpointFolder(path)
