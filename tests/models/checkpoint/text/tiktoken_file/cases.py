"""The fuzzer's target for tiktoken's files. Families are told by the number of ranks: here small ones have one too."""

from pathlib import Path
from unittest.mock import patch

from triolet.models.checkpoint.text.tiktoken import FAMILIES

from ..reading import encodes

SMALL = dict.fromkeys(range(256, 512), FAMILIES[151_643]) | dict.fromkeys(range(1, 256), FAMILIES[50_256])


def read_input(folder: Path, data: bytes) -> bool:
    with patch.dict(FAMILIES, SMALL):
        (folder / "m.tiktoken").write_bytes(data)
        return encodes(folder)
