"""The fuzzer's target for a split GGUF file: its two parts, one behind the other."""

from pathlib import Path

from triolet.models.checkpoint.gguf.file import MAGIC
from triolet.models.checkpoint.gguf.parts import part_names

from ...reading import read_weights

NAMES = part_names("m-00001-of-00002.gguf")


def read_input(folder: Path, data: bytes) -> bool:
    first, mark, second = data.rpartition(MAGIC)
    for name, part in zip(NAMES, (first, mark + second), strict=True):
        (folder / name).write_bytes(part)
    return read_weights(folder / NAMES[1])
