"""How commands show themselves: options in groups, and groups of commands whose modules are imported only to run."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from .inheritance import tell_failure
from .sources import SettingOption, nearest

SOURCES: Final = (
    "Each of the grouped options is also a variable, TRIOLET_MAX_MODEL_LEN for --max-model-len, and a key in "
    "triolet.toml, max-model-len = 2048. The command line wins, then the variable, then the file. "
    "`triolet config` shows the settings in force and where each comes from."
)


class SettingsCommand(click.Command):
    """A command with options of the settings tree: the command's own come first, then each group of settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        general: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is None:
                continue
            if isinstance(parameter, SettingOption):
                sections.setdefault(parameter.group, []).append(record)
            elif parameter.opts[-1] in ("--config", "--help"):
                general.append(record)
            else:
                sections["Options"].append(record)
        for title, records in {**sections, "General": general}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(SOURCES)
        super().format_epilog(ctx, formatter)


class LazyGroup(click.Group):
    """Commands by name: the module beside this one, the function in it, and the line in the group's help."""

    def __init__(self, *, lazy: Mapping[str, tuple[str, str, str]], **attributes: Any) -> None:  # Any: click.Group's
        super().__init__(**attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, function, _ = self._lazy[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __package__), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:  # click suggests only commands that are loaded
            if args[0] in self._lazy or args[0].startswith("-"):
                raise
            raise click.UsageError(f"no command {args[0]!r}{nearest(args[0], self._lazy)}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:  # Any: what a command returns
        try:
            return super().invoke(ctx)
        except BaseException as error:
            tell_failure(error)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self._lazy.items()])
