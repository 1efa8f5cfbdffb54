"""The `triolet` command. A subcommand's module is imported only when it runs, so that `triolet --help` is fast."""

from importlib import import_module
from typing import Final

import click

COMMANDS: Final = {
    "serve": "Serve a model over HTTP and WebSocket, with a chat page.",
    "chat": "Chat in the terminal, with a running server or with a model of your own.",
    "complete": "Continue one prompt and print the text as it comes.",
    "bench": "Measure the engine on this machine, or load a server.",
}


class LazyGroup(click.Group):
    """One command per key of COMMANDS: the function of that name in the module of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="triolet", message="%(prog)s %(version)s")
def main() -> None:
    """Triolet serves language models: OpenAI-compatible HTTP with streaming, WebSockets and a chat page."""
