"""What the fuzzer does with each kind of tokenizer's file: the tokenizer is made, and used."""

from pathlib import Path

from triolet.models.checkpoint.text.text_files import read_text_files

TEXT = "Hi  there, <s>w\u00f6rld\n\u4f60\U0001f642 <unk>123"


def encodes(model: Path) -> bool:
    """Whether the model's files make a tokenizer, which then takes any text."""
    tokenizer = read_text_files(model).tokenizer
    tokenizer.decode(tokenizer.encode(TEXT).ids)
    return True
