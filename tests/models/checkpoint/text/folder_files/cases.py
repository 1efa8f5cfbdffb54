"""The fuzzer's target for a folder's files about texts: a line for tokenizer_config.json and each of those beside it,
then tokenizer.json or, where it is no JSON, tokenizer.model."""

from pathlib import Path

from triolet.models.checkpoint.text.folder import JSON_FILE
from triolet.models.checkpoint.text.text_files import read_text_files, tokenizer_json

from ...fuzz import write_parts
from ..reading import encodes

LINES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")


def read_input(folder: Path, data: bytes) -> bool:
    last = JSON_FILE if data.split(b"\n", len(LINES))[-1].startswith(b"{") else "tokenizer.model"
    for name in (JSON_FILE, "tokenizer.model"):
        (folder / name).unlink(missing_ok=True)
    write_parts(folder, data, *LINES, last)
    tokenizer_json(folder)
    if last == JSON_FILE:  # what such a tokenizer does is the library's
        return bool(read_text_files(folder))
    return encodes(folder)
