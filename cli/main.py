"""The `triolet` command. A subcommand's module is imported only when it runs or explains itself."""

from typing import Final

import click

from .help import LazyGroup

COMMANDS: Final = {
    "serve": ("serve", "serve", "Serve a model over HTTP and WebSocket, with a chat page."),
    "chat": ("chat", "chat", "Chat in the terminal, with a running server or with a model of your own."),
    "complete": ("complete", "complete", "Answer one prompt and print the text as it comes."),
    "batch": ("batch", "batch", "Answer a file of requests, and go on after a stop."),
    "models": ("models", "models", "List the models in the hub's cache: what they take, whether they run."),
    "plan": ("plan", "plan", "Say what a model takes of this or another machine, and how fast it can be."),
    "doctor": ("doctor", "doctor", "Say what a server is doing, or did last, and what looks wrong."),
    "upgrade": ("upgrade", "upgrade", "Let a new server take over from a running one; no answer breaks."),
    "config": ("config", "config", "Show the settings in force and where each comes from."),
    "conform": ("conform", "conform", "Check whether a server speaks the APIs that clients rely on."),
    "bench": ("bench", "bench", "Measure the engine on this machine, or load a server."),
    "completion": ("completion", "completion", "Print a script that completes this command in bash, zsh or fish."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="triolet", message="%(prog)s %(version)s")
def main() -> None:
    """Triolet serves language models: OpenAI-compatible HTTP with streaming, WebSockets and a chat page."""
