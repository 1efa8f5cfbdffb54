"""The table of docs/configuration.md, made from the options. `python -m tests.cli.option_table` writes it anew."""

import json
import re
from pathlib import Path

from msgspec import structs

from triolet.cli.options import ALL, GROUPS
from triolet.cli.sources import option_name, variable_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"


def option_table() -> str:
    """A table for each group: option, variable, key, default, meaning."""
    defaults = {field.name: field.default for owner in ALL for field in structs.fields(owner)}
    lines = ["| option | variable | key | default | |", "|---|---|---|---|---|"]
    meaning = (
        "[A folder, a .gguf file, or a name on the hub](get-a-model.md). [Several](several-models.md): NAME=MODEL."
    )
    lines.append(f"| `MODEL` | `TRIOLET_MODEL` | `model` | the bundled model | {meaning} |")
    for group, rows in GROUPS.items():
        lines.append(f"| **{group}** | | | | |")
        for name, row in rows.items():
            said = re.search(r"\s+\[default: (.+)\]", row.help)
            default = defaults[name]
            shown = said[1] if said else "" if default in (None, (), "") else f"`{json.dumps(default)}`"
            meaning = row.help[: said.start()] if said else row.help
            key = option_name(name)
            lines.append(f"| `--{key}` | `{variable_name(name)}` | `{key}` | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"


def page_with(table: str) -> str:
    """The page with this table between its markers."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with(option_table()), encoding="utf-8")
