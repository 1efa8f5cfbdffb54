"""What the fuzzer does with each kind of tokenizer's file: the tokenizer is made, and used."""

from pathlib import Path

from triolet.models.checkpoint.text.text_files import read_text_files
from triolet.models.errors import CheckpointError

TEXT = "Hi  there, <s>w\u00f6rld\n\u4f60\U0001f642 <unk>123"


def encodes(folder: Path, name: str, data: bytes) -> bool:
    """Whether the file makes a tokenizer, which then takes any text."""
    (folder / name).write_bytes(data)
    try:
        tokenizer = read_text_files(folder).tokenizer
    except CheckpointError:
        return False
    tokenizer.decode(tokenizer.encode(TEXT).ids)
    return True
