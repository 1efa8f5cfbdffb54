"""The worker process: an executor behind a link.

`python -m triolet.actors.executor.worker FD`, started only by the supervisor.

When the front closes the socket or dies, the worker exits at once, even in the middle of a step: it has nothing to
save. Its main thread only reads, so it answers pings while the step thread computes; the thread that has a step's
answer writes it. It ignores SIGINT and SIGTERM, which terminals and service managers send to the whole group: the front
drains first and then closes the socket.
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from functools import partial
from typing import Final, NoReturn, assert_never

import msgspec

from ...protocol.steps import FromWorker, LoadFailed, LoadModel, Ping, Pong, Step, StepFailed, ToWorker
from .blocking_link import BlockingLink
from .executor import StepThreads, load_from

_DECODER: Final = msgspec.msgpack.Decoder[ToWorker](ToWorker)
_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends for any reason, even if this one is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve(link: BlockingLink[ToWorker]) -> NoReturn:
    """Load the model of the first message, then run steps until the front is gone or a step has failed."""

    def answer(message: FromWorker) -> None:
        """Called in the executor's threads. After sending a failure, the process ends."""
        try:
            link.send(message)
        except OSError:
            _exit(0)  # the front is gone
        if isinstance(message, LoadFailed | StepFailed):
            _exit(1 if isinstance(message, StepFailed) else 0)

    first = link.receive()
    assert isinstance(first, LoadModel), f"the first message is {type(first).__name__}, not LoadModel"
    threads = StepThreads(partial(load_from, first.settings), answer)
    while True:
        message = link.receive()
        match message:
            case Step():
                threads.submit(message)
            case Ping():
                link.send(Pong())
            case LoadModel():
                raise AssertionError("a second LoadModel")
            case _:
                assert_never(message)


def _exit(status: int) -> NoReturn:
    """Leave without waiting for the step thread, which may be in the middle of a kernel."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads that nothing here uses
    gc.set_threshold(50_000)  # imports make little garbage, and collecting it takes a tenth of a start
    logging.basicConfig(level=logging.INFO, format="worker: %(message)s", stream=sys.stderr)
    try:
        serve(BlockingLink(socket.socket(fileno=int(sys.argv[1])), _DECODER))
    except (EOFError, OSError):
        _exit(0)  # the front is gone
    except BaseException:
        logging.getLogger("triolet.worker").exception("the worker failed")
        _exit(2)


if __name__ == "__main__":
    main()
