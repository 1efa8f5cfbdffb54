"""The fuzzer's target for SentencePiece's files."""

from pathlib import Path

from ..reading import encodes


def read_input(folder: Path, data: bytes) -> bool:
    (folder / "tokenizer.model").write_bytes(data)
    return encodes(folder)
