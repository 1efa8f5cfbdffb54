"""The worker process: an executor behind a link.

`python -m triolet.actors.executor.worker FD`, started only by the supervisor.

When the front closes the socket or dies, the worker exits at once, even in the middle of a step: it has nothing to
save. Its main thread only reads, so it answers pings while the step thread computes; the thread that has a step's
answer writes it.
"""

import gc
import logging
import os
import socket
import sys
from functools import partial
from typing import Final, NoReturn, assert_never

import msgspec

from ...protocol.settings import EngineSettings
from ...protocol.steps import (
    ForgetAdapters,
    FromWorker,
    LoadFailed,
    LoadModel,
    Ping,
    Pong,
    PrepareAdapter,
    PrepareGrammar,
    Step,
    StepFailed,
    ToWorker,
)
from ..logs import log_to_stderr
from ..supervisor.child_process import die_with_parent
from .blocking_link import BlockingLink
from .executor import StepThreads, load_from

_DECODER: Final = msgspec.msgpack.Decoder[ToWorker](ToWorker)


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
    log_to_stderr(first.settings)
    threads = StepThreads(partial(load_from, first.settings), answer)
    while True:
        message = link.receive()
        match message:
            case Step():
                threads.submit(message)
            case PrepareGrammar() | PrepareAdapter() | ForgetAdapters():
                threads.prepare(message)
            case Ping():
                link.send(Pong(progress=threads.progress()))
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
    die_with_parent()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads that nothing here uses
    gc.set_threshold(50_000)  # imports make little garbage, and collecting it takes a tenth of a start
    log_to_stderr(EngineSettings(model=""))  # until its settings come
    try:
        serve(BlockingLink(socket.socket(fileno=int(sys.argv[1])), _DECODER))
    except (EOFError, OSError):
        _exit(0)  # the front is gone
    except BaseException:
        logging.getLogger("triolet.worker").exception("the worker failed")
        _exit(2)


if __name__ == "__main__":
    main()
