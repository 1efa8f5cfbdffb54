"""A model in GGUF: one file, or all parts of a split one (`NAME-00001-of-00003.gguf`), which must belong together.

The first part has the metadata; the others have their number and their tensors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...errors import CheckpointError
from .file import GgufFile, PlacedTensor
from .metadata import Metadata

MAX_PARTS: Final = 1000
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class Gguf:
    """The metadata and the tensors of a model. `path` is its file or any of its parts."""

    def __init__(self, path: Path) -> None:
        path = _placed(path)
        names = part_names(path.name)
        first = GgufFile(path.parent, names[0])
        self.path = path
        self.metadata: Metadata = first.metadata
        self.parts = [first, *(GgufFile(path.parent, name) for name in names[1:])]
        for index, part in enumerate(self.parts):
            _check_part(part, index, len(names))
        self._home = {tensor: part for part in self.parts for tensor in part.tensors}
        found = sum(len(part.tensors) for part in self.parts)
        if found != len(self._home):
            raise CheckpointError(path.name, found, "tensors in all parts: a name occurs in two of them")
        if len(names) > 1 and (expected := self.metadata.get("split.tensors.count")) not in (None, found):
            raise CheckpointError("split.tensors.count", expected, f"but the parts hold {found} tensors")

    @property
    def tensors(self) -> dict[str, PlacedTensor]:
        return {name: part.tensors[name] for name, part in self._home.items()}

    def tensor(self, name: str) -> PlacedTensor:
        return self._home[name].tensors[name]

    def read(self, name: str) -> memoryview:
        """The bytes of a tensor: a read-only view of the file."""
        return self._home[name].read(name)

    def release_pages(self) -> None:
        for part in self.parts:
            part.release_pages()


def part_names(name: str) -> list[str]:
    """All files of the model that a file of this name belongs to, in order. Pure."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    number, count = int(match["number"]), int(match["count"])
    if not 0 < number <= count <= MAX_PARTS:
        raise CheckpointError("file", name, f"a part has a number from 1 to their count, which is at most {MAX_PARTS}")
    return [f"{match['stem']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


def stem(name: str) -> str:
    """What a model is called by its file, or by one of its parts."""
    match = _PART.fullmatch(name)
    return match["stem"] if match else name.removesuffix(".gguf")


def _check_part(part: GgufFile, index: int, count: int) -> None:
    said = part.metadata.get("split.count", 0) or 1, part.metadata.get("split.no", 0)  # a merged file says 0
    if said != (count, index):
        raise CheckpointError(
            f"{part.name}: split.count, split.no",
            said,
            f"expected {(count, index)}; the name and the content disagree, or parts are missing",
        )


def _placed(path: Path) -> Path:
    """The file in the folder where its other parts are. Hugging Face's cache links to names that tell nothing."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError("model", str(path), f"there is no such file ({error})") from None
    inside = path.parent.resolve() / path.name
    return inside if inside.parent.parent.name == "snapshots" else target
