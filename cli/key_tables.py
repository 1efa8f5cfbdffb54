"""The `[[keys]]` of a settings file: API keys with limits, each known by its SHA-256 alone. Refusals name the key."""

import difflib
import re
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ..protocol.settings import KeySettings

_FIELDS: Final = KeySettings.__struct_fields__
_HASH: Final = "`printf %s KEY | sha256sum` prints it"


def read_key_tables(path: Path, tables: object) -> tuple[KeySettings, ...]:
    """The tables as settings. Raises click.UsageError."""
    try:
        found = msgspec.convert(tables, list[dict[str, Any]])  # Any: TOML's values
    except msgspec.ValidationError:
        problem = "keys must be tables: write [[keys]] above the fields of each key"
        raise click.UsageError(f"{path}: {problem}") from None
    keys: list[KeySettings] = []
    for number, table in enumerate(found, 1):
        where = f"{path}: key {table.get('name') or number}"
        try:
            key = _read(table)
        except ValueError as error:
            raise click.UsageError(f"{where}: {error}") from error
        for other in keys:
            if other.sha256 == key.sha256:
                raise click.UsageError(f"{where} has the sha256 of {other.name or 'another'}: leave one of them out")
            if key.name and other.name == key.name:
                raise click.UsageError(f"{where}: another key has this name; give it one of its own")
        keys.append(key)
    return tuple(keys)


def _read(table: dict[str, Any]) -> KeySettings:
    """Raises ValueError, with the remedy."""
    for field in table:
        if field not in _FIELDS:
            near = difflib.get_close_matches(field, _FIELDS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(_FIELDS)}"
            raise ValueError(f"unknown field {field!r}; {remedy}")
    digest = table.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise ValueError(f"sha256 must be the SHA-256 of the key, 64 hex digits; {_HASH}")
    if not re.fullmatch(r"[\w.-]{0,64}", str(table.get("name", ""))):
        raise ValueError("name must be one word of letters, digits, dots, dashes and underscores, at most 64")
    try:
        return msgspec.convert(table | {"sha256": digest.lower()}, KeySettings)
    except msgspec.ValidationError as error:
        problem, _, field = str(error).partition(" - at `$.")
        raise ValueError(f"{field.rstrip('`')}: {problem[:1].lower()}{problem[1:]}") from error
