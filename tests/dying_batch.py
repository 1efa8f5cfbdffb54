"""A `triolet` that kills itself in the middle of a batch, for the tests of what is left of it."""

import sys

DIES = """
import os, signal
from triolet.actors.batch import batches
from triolet.cli.main import main

calls, put = 0, batches.put_result

def put_result(*args, **named):
    global calls
    calls += 1
    put(*args, **named)
    if calls > {results}:
        os.kill(os.getpid(), signal.SIGKILL)  # in the transaction

batches.put_result = put_result
main({arguments})
"""


def dying_command(results: int, *arguments: str) -> list[str]:
    """The command for `triolet` with these arguments, as a process that dies after so many results of lines."""
    return [sys.executable, "-c", DIES.format(results=results, arguments=list(arguments))]
