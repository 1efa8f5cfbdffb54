"""`python -m tests.docs.parse_only bench serve --rate 20`: parses a command with its options, and stops."""

from unittest.mock import patch

import click

from triolet.cli.main import main


def _nothing(_command: click.Command, _ctx: click.Context) -> None:
    pass


if __name__ == "__main__":
    with patch.object(click.Command, "invoke", _nothing):  # a group still asks for its command, which is parsed
        main(prog_name="triolet")
