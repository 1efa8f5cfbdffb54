"""What the first process of a line of servers becomes when it has handed over: it waits for those that follow it.

Service managers and containers watch its number. It passes signals on to the server that serves, takes in the process
that this one hands over to, and ends as the last of them. Its text is run by a bare interpreter, which takes few
megabytes; so it imports nothing of ours. All its signals are blocked, and taken one after another.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Final

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SIGNALS: Final = frozenset((*PASSED_ON, signal.SIGCHLD))
ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)
TOLD_TO_END: Final = signal.SIGUSR1  # in the place of ENDINGS, which a manager may also have sent to every process


def wait_for(pid: int, heirs: int) -> int:
    """The exit status of the last server. `heirs`: a pipe to which each server that takes over has written its number.

    The caller has blocked SIGNALS.
    """
    ended: dict[int, int] = {}
    while True:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])
        while pid in ended or not _lives(pid):
            status = ended.get(pid, 1)
            written = _written(heirs)
            if not written or written[-1] == pid:
                return status if status >= 0 else 128 - status
            pid = written[-1]
        number = signal.sigwait(SIGNALS)
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(pid, TOLD_TO_END if number in ENDINGS else number)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _written(pipe: int) -> list[int]:
    try:
        return [int(line) for line in os.read(pipe, 4096).split()]
    except BlockingIOError:  # nothing new
        return []


if __name__ == "__main__":
    sys.exit(wait_for(int(sys.argv[1]), int(sys.argv[2])))
