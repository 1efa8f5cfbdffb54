"""The worker process: an executor behind a link. `python -m triolet.actors.worker FD`, started by the supervisor alone.

The socket's end is its life's end: when the front closes it or dies, the worker exits at once, in the middle of a step
if need be; there is nothing to save. Its event loop only carries messages, so it answers a ping while the step thread
computes. It ignores SIGINT and SIGTERM, which a terminal or a service manager sends to the whole group: the front
drains first and then lets it go.
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from typing import Final, NoReturn, assert_never

import msgspec
import trio

from ..protocol.steps import FromWorker, Load, LoadFailed, Ping, Pong, Step, StepFailed, ToWorker
from .executor import ModelCore, run_executor
from .link import Link

_DECODER: Final = msgspec.msgpack.Decoder[ToWorker](ToWorker)
_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that happens, also while this one is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def _answer(link: Link[ToWorker], answers: trio.MemoryReceiveChannel[FromWorker]) -> None:
    """The only writer. After a failure has been told, the process has nothing left to do."""
    async for answer in answers:
        await link.send(answer)
        if isinstance(answer, LoadFailed | StepFailed):
            _exit(1 if isinstance(answer, StepFailed) else 0)


async def serve(link: Link[ToWorker]) -> None:
    """Load what the first message says, then run what comes, until the front is gone."""
    first = await link.receive()
    assert isinstance(first, Load), f"the first message is {type(first).__name__}, not Load"
    # Bounded by their use: the front has a few steps in flight and gets one answer for each, and one per ping.
    to_executor, steps = trio.open_memory_channel[Step](1000)
    to_front, answers = trio.open_memory_channel[FromWorker](float("inf"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer, link, answers)
        core = ModelCore(first.settings)
        nursery.start_soon(lambda: run_executor(steps, to_front.clone(), core=core))
        while True:
            message = await link.receive()
            match message:
                case Step():
                    await to_executor.send(message)
                case Ping():
                    to_front.send_nowait(Pong())
                case Load():
                    raise AssertionError("a second Load")
                case _:
                    assert_never(message)


def _exit(status: int) -> NoReturn:
    """Leave without waiting for the step thread, which may be in the middle of a kernel."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _main(sock: socket.socket) -> None:
    link = Link(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), _DECODER)
    try:
        await serve(link)
    except* (trio.EndOfChannel, trio.BrokenResourceError):
        _exit(0)  # the front is gone
    except* BaseException:
        logging.getLogger("triolet.worker").exception("the worker failed")
        _exit(2)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads that nothing here ever uses
    gc.set_threshold(50_000)  # imports make little garbage, and looking for it is a tenth of a start
    logging.basicConfig(level=logging.INFO, format="worker: %(message)s", stream=sys.stderr)
    trio.run(_main, socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
