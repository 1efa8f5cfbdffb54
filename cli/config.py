"""`triolet config`: the settings in force, as a file that `--config` takes, with the origin of each as a comment."""

import json
import re
from typing import Any, Final, cast

import click
from msgspec import structs

from ..protocol.settings import ModelSettings
from .help import SettingsCommand
from .model_argument import GivenModel
from .options import FIELDS, GROUPS, build_settings, serve_options
from .sources import KEY_TABLES, KEYS, key_tables, option_name, origin

_SAID: Final = re.compile(r"\[default: (.+)\]")


def default_text(name: str) -> str:
    """`default`, with what the help says of one that is no constant: `default: the physical cores`."""
    help = next((rows[name].help for rows in GROUPS.values() if name in rows), "[default: the bundled model]")
    said = _SAID.search(help)
    return f"default: {said[1]}" if said else "default"


@click.command(cls=SettingsCommand)
@serve_options
def config(model: GivenModel, **values: Any) -> None:  # Any: click's values
    """Print the settings that `triolet serve` would run with, and where each comes from. Nothing is started.

    The output is a configuration file. API keys are never printed, only the names of the files that hold them.

    \b
    triolet config                                 what variables and files say here
    triolet config --quantize int8 > int8.toml     keep it, for `triolet serve --config int8.toml`
    """
    ctx = click.get_current_context()
    build_settings(model, values)  # refuses keys that cannot be used
    click.echo("# The settings of `triolet serve`, and where each comes from.")
    given = {"model": model, **values}
    lines = [_line(ctx, name, given[name]) for name in FIELDS]
    width = max(len(line) for line, _ in lines if len(line) < 50)
    told = dict(zip(FIELDS, (f"{line:<{width}}  # {comment}" for line, comment in lines), strict=True))
    click.echo(told.pop("model"))
    for group, rows in GROUPS.items():
        click.echo(f"\n# {group}")
        for name in rows:
            click.echo(told[name])
    for key in key_tables():
        click.echo(f"\n[[{KEY_TABLES}]]")
        for name, value in structs.asdict(key).items():
            if value not in (None, ""):
                click.echo(f"{name} = {_toml(value)}")


def _line(ctx: click.Context, name: str, value: object) -> tuple[str, str]:
    """`key = value`, commented out where there is no value, and where it comes from."""
    source = ctx.get_parameter_source(name)
    typed = source is not None and source.name == "COMMANDLINE"
    comment = origin(ctx, name) or ("command line" if typed else default_text(name))
    key = option_name(name)
    if isinstance(value, tuple):
        values = cast("tuple[object, ...]", value)  # click's tuples have no element type
        texts = [f"{each.name}={each.path}" if isinstance(each, ModelSettings) else str(each) for each in values]
        if name in KEYS and any(not text.startswith("@") for text in texts):
            return f"# {key}", f"{comment}; {len(texts)} given, not shown"
        value = texts or None
    if value is None:
        return f"# {key}", comment
    return f"{key} = {_toml(value)}", comment


def _toml(value: object) -> str:
    """A string, number, flag or list of strings; JSON's forms of them are TOML's, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
