"""`python -m triolet`, the same as the command `triolet`."""

from triolet.cli.main import main

main(prog_name="python -m triolet")
