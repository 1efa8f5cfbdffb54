"""What the first process of a line of servers becomes when it has handed over: it waits for those that follow it.

Service managers and containers watch its number. It passes signals on to those that follow, takes in the process that
one of them hands over to, and ends as the last one does. Its text is run by a bare interpreter, which takes few
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
NAME: Final = "triolet-waiter"  # its last argument, by which others know it
TOLD_TO_END: Final = signal.SIGUSR1  # in the place of ENDINGS, which a manager may also have sent to every process


def wait_for(pid: int, heirs: int) -> int:
    """The exit status of the last server. `heirs`: a pipe to which each server writes the number of its follower.

    The caller has blocked SIGNALS. Two servers live at once while the older one finishes its answers. Both are told to
    end as often as this process is; other signals are for the newer one.
    """
    line, statuses, told, sent = [pid], dict[int, int](), 0, dict[int, int]()
    while True:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        line += [heir for heir in _written(heirs) if heir not in line]
        living = [server for server in line if server not in statuses and _lives(server)]
        if not living:
            status = next((statuses[server] for server in reversed(line) if server in statuses), 1)
            return status if status >= 0 else 128 - status
        for server in living:
            if sent.get(server, 0) < told:
                sent[server] = sent.get(server, 0) + 1
                os.kill(server, TOLD_TO_END)
        number = signal.sigwait(SIGNALS)
        if number in ENDINGS:
            told += 1
        elif number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(living[-1], number)


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
