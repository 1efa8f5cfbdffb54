"""A child process behind a socket pair: how it starts, and that it never outlives its parent.

A worker loads while the front still imports its web: its first message is in the socket before it is read.

The main thread starts it, not `trio.run_process`, which forks in a pool thread. A worker asks the kernel to be killed
when its parent dies (PR_SET_PDEATHSIG), and for the kernel the parent is the forking *thread*: a pool thread ends after
ten idle seconds and would take the worker with it. The fork itself takes a millisecond or two.

A child never sees the signals that terminals and service managers send to the whole group: it inherits them blocked, so
its first moments are covered too. The parent drains and then closes the link.

This module needs no event loop, so a child can be started before there is one.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ...protocol.message import Message
from ...protocol.settings import EngineSettings
from ...protocol.steps import LoadModel
from .frame import FrameWriter

if TYPE_CHECKING:
    import trio

WORKER_MODULE: Final = "triolet.actors.executor.worker"
_OF_THE_GROUP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_STDERR: Final = 2  # a child's output goes to our standard error, never to our standard output


class ChildProcess:
    """A running child that has been sent its first message, and our end of the socket pair."""

    def __init__(
        self,
        what: str,
        module: str,
        first: Message,
        *,
        sockets: Sequence[socket.socket] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """Run `python -m module LINK SOCKET… ARGUMENT…`; LINK and SOCKET are inherited descriptors.

        Afterwards this process may close its own `sockets`. Raises OSError.
        """
        self._what = what
        self._socket, theirs = socket.socketpair()
        with theirs:
            inherited = [theirs.fileno(), *(sock.fileno() for sock in sockets)]
            # -P: modules in the current folder must not replace ours.
            command = [sys.executable, "-P", "-m", module, *map(str, inherited), *arguments]
            try:
                with _blocked(_OF_THE_GROUP):
                    self._process = subprocess.Popen(
                        command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=_STDERR
                    )
                self._socket.sendall(FrameWriter().write(first))  # some kilobytes at most: does not block
            except BaseException:
                self._socket.close()
                raise

    @cached_property
    def stream(self) -> "trio.SocketStream":
        import trio

        return trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int:
        """Its exit status once it has ended; minus the signal that ended it."""
        assert self._process.returncode is not None
        return self._process.returncode

    def kill(self) -> None:
        """Kill it at once; `end` must follow."""
        self._process.kill()

    async def end(self, grace: float = 0.2) -> str:
        """Close the link, kill it `grace` seconds later, and wait until it is gone. Returns how it ended.

        Cancelling does not interrupt this: the kernel frees its memory quickly, and no child may be left behind.
        """
        import trio

        with trio.CancelScope(shield=True):
            await self._end(grace)
        status = self._process.wait()  # known by now
        if status < 0:
            name = signal.Signals(-status).name
            if name == "SIGBUS":  # its weights are mapped from there
                name += ": a file of the checkpoint was truncated, or its disk failed"
            return f"the {self._what} process was killed by {name}"
        return f"the {self._what} process exited with status {status}"

    async def _end(self, grace: float) -> None:
        import trio

        await trio.aclose_forcefully(self.stream)
        # It may just have exited by itself after its last message; then its own status is more useful.
        with trio.move_on_after(grace):
            while self._process.poll() is None:  # noqa: ASYNC110 - a process gives no event that every system has
                await trio.sleep(0.01)
        self._process.kill()
        await trio.to_thread.run_sync(self._process.wait)


def die_with_parent() -> None:
    """A child calls it: Linux kills it when its parent ends for any reason, even while the child is stopped."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def _blocked(numbers: Sequence[signal.Signals]) -> Generator[None]:
    """Keep these signals from the calling thread, and from the processes that it starts, for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(settings: EngineSettings, module: str = WORKER_MODULE, arguments: Sequence[str] = ()) -> ChildProcess:
    """Start a worker that loads a model. Raises OSError."""
    return ChildProcess("worker", module, LoadModel(settings=settings), arguments=arguments)
