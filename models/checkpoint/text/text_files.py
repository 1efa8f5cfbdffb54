"""Everything about texts that a model's files say: the tokenizer, the chat templates, the special tokens by name.

A folder has them in files (folder.py), a GGUF file among its metadata (gguf.py). Whatever the source, the result is a
tokenizer of the tokenizers library.
"""

from pathlib import Path

from msgspec import Struct
from tokenizers import Tokenizer

from ..files import find_file, folder_of, read_text
from ..gguf.parts import Gguf
from .chat_templates import read_templates
from .folder import JSON_FILE, MAX_JSON_BYTES, read_config, read_tokenizer
from .gguf import GgufText


class TextFiles(Struct, frozen=True):
    """`templates`: sources of chat templates by name. `special_tokens`: as templates name them, `bos_token` …"""

    tokenizer: Tokenizer
    templates: dict[str, str]
    special_tokens: dict[str, str]


def read_text_files(model: Path) -> TextFiles:
    """Of a checkpoint folder or a GGUF file. Raises CheckpointError, UnsupportedModel."""
    if model.suffix == ".gguf":
        text = GgufText(Gguf(model).metadata)
        return TextFiles(text.tokenizer(), text.templates(), text.special_tokens())
    folder = folder_of(model)
    config = read_config(folder)
    tokenizer, named = read_tokenizer(folder, config)
    return TextFiles(tokenizer, read_templates(folder, config), named)


def tokenizer_json(model: Path) -> str:
    """The tokenizer as other libraries read it. Raises CheckpointError, UnsupportedModel."""
    if model.suffix != ".gguf" and find_file(folder := folder_of(model), JSON_FILE) is not None:
        return read_text(folder, JSON_FILE, MAX_JSON_BYTES)
    return read_text_files(model).tokenizer.to_str()
