"""Where a setting may come from: the command line, then a variable `TRIOLET_…`, then a TOML file, then the default.

click takes the values in this order and checks all of them in the same way. This module finds the file, refuses keys
that mean nothing, warns of such variables, and says where a value came from.
"""

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from ..actors.logs import log_to_stderr
from ..protocol.settings import EngineSettings, KeySettings
from .key_tables import read_key_tables

PREFIX: Final = "TRIOLET_"
FILE_NAME: Final = "triolet.toml"
CONFIG_VARIABLE: Final = "TRIOLET_CONFIG"

_LOG: Final = logging.getLogger("triolet.settings")
_NOTES: Final = "triolet.notes"  # in a context's meta: lines for the user, until the form of the log is known
_KEY_TABLES: Final = "triolet.keys"  # in a context's meta: those of the file
_FILE: Final = "triolet.settings_file"  # in a context's meta: the path of the file that was read
# Kubernetes gives every container such variables for a service of the name triolet.
_SERVICE_LINK: Final = re.compile(r"TRIOLET_(SERVICE_.+|PORT_\d+_.+)")


KEYS: Final = frozenset({"api_keys", "operator_keys"})  # never shown
MODELS: Final = "models"  # a table of a file, in the place of `model`
KEY_TABLES: Final = "keys"  # tables of a file that no option says; for commands that serve
_SINGULAR: Final = {  # options that may be repeated
    "api_keys": "api-key",
    "operator_keys": "operator-key",
    "allow_origins": "allow-origin",
    "loras": "lora",
    "aliases": "alias",
}


def option_name(field: str) -> str:
    """`max_model_len` -> `max-model-len`; a repeatable option has a singular name."""
    return _SINGULAR.get(field, field.replace("_", "-"))


def variable_name(field: str) -> str:
    """`max_model_len` -> `TRIOLET_MAX_MODEL_LEN`."""
    return PREFIX + option_name(field).replace("-", "_").upper()


def default_files() -> list[Path]:
    """Where a file is looked for without --config; the first that exists is read, and no other."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return [Path(FILE_NAME), Path(home).expanduser() / "triolet" / FILE_NAME]


def origin(ctx: click.Context, name: str) -> str:
    """Where this parameter's value came from, in words; empty for the command line and the default."""
    match ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return f"variable {variable_name(name)}"
        case ParameterSource.DEFAULT_MAP:
            return f"{option_name(name)} in {ctx.meta[_FILE]}"
        case _:
            return ""


class SettingOption(click.Option):
    """An option that is also a variable and a key of the file; an error names the one that was used."""

    def __init__(self, field: str, *, group: str, **attributes: Any) -> None:  # Any: those of click.Option
        super().__init__([f"--{option_name(field)}", field], envvar=variable_name(field), **attributes)
        self.group = group

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return (ctx is not None and origin(ctx, self.name or "")) or super().get_error_hint(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:  # Any: a TypedDict that click does not export
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # `x>=1` beside every count says little
        return extra


class ModelArgument(click.Argument):
    """The model of a command whose argument it is, as it was given: `./a/b` is a path, `a/b` may be a name."""

    def __init__(self, **attributes: Any) -> None:  # Any: those of click.Argument
        attributes.setdefault("type", click.Path())
        super().__init__(["model"], required=False, envvar=variable_name("model"), **attributes)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return (ctx is not None and origin(ctx, "model")) or super().get_error_hint(ctx)


def from_elsewhere(message: str) -> str:
    """` (--host is from variable TRIOLET_HOST)`, for options that a refusal names and nobody typed; else empty."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return ""
    found: list[str] = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        spelt = "MODEL" if name == "model" else f"--{option_name(name)}"
        if re.search(rf"(?<![\w-]){spelt}(?![\w-])", message) and (place := origin(ctx, name)):
            found.append(f"{spelt} is from {place}")
    return f" ({'; '.join(found)})" if found else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing where no name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def check_variables(ctx: click.Context, fields: Iterable[str]) -> None:
    """Warn of variables that look like ours and mean nothing. They are not refused: others may have set them."""
    listens = any(parameter.name == "port" for parameter in ctx.command.params)
    if listens and os.environ.get("TRIOLET_PORT", "").startswith("tcp://"):
        raise click.UsageError(
            "variable TRIOLET_PORT is a Kubernetes service link, not a port: set enableServiceLinks: false in the "
            "pod, or give the service another name than triolet"
        )
    known = {CONFIG_VARIABLE, *map(variable_name, fields)}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name):
            _notes(ctx).append(f"nothing reads the variable {name}{nearest(name, known)}")


def _notes(ctx: click.Context) -> list[str]:
    found: list[str] = ctx.meta.setdefault(_NOTES, [])
    return found


def add_note(text: str) -> None:
    """Something that the user should know about the settings; `tell_notes` says it. Outside a command, said now."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        click.echo(f"Note: {text}", err=True)
    else:
        _notes(ctx).append(text)


def tell_notes(settings: EngineSettings) -> None:
    """Say, in the form of the log, what was noticed while the settings were read. Once."""
    ctx = click.get_current_context(silent=True)
    notes = _notes(ctx) if ctx is not None else []
    if notes and settings.log_format == "json":
        log_to_stderr(settings)
        for note in notes:
            _LOG.warning("%s", note)
    else:
        for note in notes:
            click.echo(f"Note: {note}", err=True)
    notes.clear()


def read_file(ctx: click.Context, path: Path | None, fields: Iterable[str]) -> None:
    """Make a file's values the command's defaults: `path`, or the first default file there is.

    A file may serve several commands, so any of `fields` may stand in it; the command's own options may too.
    """
    if path is None:
        path = next((file for file in default_files() if file.is_file()), None)
        if path is None:
            return
        _notes(ctx).append(f"settings from {path}")
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    settings = set(map(option_name, fields))
    own = {
        "model" if parameter.name == "model" else parameter.opts[0].removeprefix("--"): parameter
        for parameter in ctx.command.params
        if parameter.name not in ("config", "help", "prompt")
    }
    known = {*settings, *own, MODELS, KEY_TABLES}
    if MODELS in table:
        table["model"] = _model_words(path, table.pop(MODELS), own["model"]) if "model" in own else None
    ctx.meta[_KEY_TABLES] = read_key_tables(path, table.pop(KEY_TABLES, ()))
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            remedy = nearest(key, known) or f". Known keys: {', '.join(sorted(known))}"
            raise click.UsageError(f"{path}: unknown key {key!r}{remedy}")
        parameter = own.get(key)
        # The --api-key of `triolet chat` has the name of a setting and is none: it is the client's key.
        if parameter is not None and (key not in settings or key == "model" or isinstance(parameter, SettingOption)):
            defaults[parameter.name or key] = _checked(path, key, value, parameter)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    ctx.meta[_FILE] = path


def key_tables() -> tuple[KeySettings, ...]:
    """The `[[keys]]` of the file that the command has read."""
    ctx = click.get_current_context(silent=True)
    found: tuple[KeySettings, ...] = ctx.meta.get(_KEY_TABLES, ()) if ctx is not None else ()
    return found


def _model_words(path: Path, models: object, parameter: click.Parameter) -> object:
    """A `[models]` table as the words of the command line. A command of one model takes the first."""
    try:
        folders = msgspec.convert(models, dict[str, str])
        first = next(iter(folders.values()))
    except (msgspec.ValidationError, StopIteration):
        problem = f'{MODELS} must be a table of folders by name, such as chat = "models/chat"'
        raise click.UsageError(f"{path}: {problem}") from None
    return [f"{name}={folder}" for name, folder in folders.items()] if parameter.nargs == -1 else first


def _checked(path: Path, key: str, value: object, parameter: click.Parameter) -> object:
    """The value, of a kind that click can check."""
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    many = parameter.multiple or parameter.nargs == -1
    single = [value] if many and isinstance(value, str) else value
    unfit = isinstance(value, dict) or (isinstance(value, list) is not many and single is value)
    if unfit or isinstance(value, bool) is not flag:
        wanted = "true or false" if flag else "a string or a list of strings" if many else "a plain value"
        raise click.UsageError(f"{path}: {key} must be {wanted}, not {value!r}")
    return single
