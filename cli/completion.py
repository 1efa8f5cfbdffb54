"""`triolet completion SHELL`: the script that makes a shell complete commands, options and their values."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_TRIOLET_COMPLETE"  # the script sets it and runs `triolet`, and click then answers with words


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `triolet` in SHELL.

    \b
    triolet completion bash > ~/.local/share/bash-completion/completions/triolet
    triolet completion zsh > "${fpath[1]}/_triolet"
    triolet completion fish > ~/.config/fish/completions/triolet.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(click.get_current_context().find_root().command, {}, "triolet", _VARIABLE).source())
