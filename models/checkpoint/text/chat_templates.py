"""The chat templates of a folder, by name, as transformers finds them. One that has no name is "default".

`chat_template.jinja` goes before `chat_template` of tokenizer_config.json, which is one text or a list of named ones;
`additional_chat_templates/NAME.jinja` goes before both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from ...errors import CheckpointError
from ..files import find_file, read_text

MAX_TEMPLATE_BYTES: Final = 1 << 20  # the longest known have 20 kB
MAX_TEMPLATES: Final = 64
FILE: Final = "chat_template.jinja"
FOLDER: Final = "additional_chat_templates"


def read_templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """`config`: tokenizer_config.json. Raises CheckpointError for files that may not be read."""
    found = _of_config(config.get("chat_template"))
    if find_file(folder, FILE) is not None:
        found["default"] = read_text(folder, FILE, MAX_TEMPLATE_BYTES)
    names = sorted(path.name for path in (folder / FOLDER).glob("*.jinja"))
    if len(names) > MAX_TEMPLATES:
        raise CheckpointError("file", FOLDER, f"has {len(names)} templates; at most {MAX_TEMPLATES} are read")
    named = {name: read_text(folder, name, MAX_TEMPLATE_BYTES, inside=FOLDER) for name in names}
    return found | {name.removesuffix(".jinja"): text for name, text in named.items()}


def _of_config(entry: object) -> dict[str, str]:
    named: dict[object, object] = {"default": entry}
    if isinstance(entry, list):
        items = [cast("dict[str, object]", item) for item in cast("list[object]", entry) if isinstance(item, dict)]
        named = {name: item.get("template") for item in items if isinstance(name := item.get("name"), str)}
    elif isinstance(entry, dict):
        named = cast("dict[object, object]", entry)
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
