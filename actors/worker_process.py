"""The worker as an operating-system process: how it is started, and that it never outlives the front.

It is started by the main thread and not by `trio.run_process`, which forks in a pool thread: the worker asks the kernel
to be killed when its parent dies (PR_SET_PDEATHSIG), and for the kernel the parent is the forking *thread*; a pool
thread ends after ten idle seconds and would take the worker with it. The fork itself takes a millisecond or two.

The worker loads while the front still imports its web: what to load is written into the socket before anybody reads,
and importing this module takes no event loop.
"""

import signal
import socket
import subprocess
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ..protocol.settings import EngineSettings
from ..protocol.steps import Load
from .frame import FrameWriter

if TYPE_CHECKING:
    import trio

_STDERR: Final = 2  # what the worker prints goes where the front's own messages go, never into its output


class WorkerProcess:
    """A running worker, told to load a model, and the front's end of the socket pair to it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -P: no module of the folder the server was started in may stand in for ours.
            command = [sys.executable, "-P", "-m", "triolet.actors.worker", str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=_STDERR
                )
                self._socket.sendall(FrameWriter().write(Load(settings=settings)))  # some hundred bytes: does not block
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

    async def end(self) -> str:
        """Kill it if it still runs, and wait until it is gone. Says how it ended.

        Cancelling does not cut this short: the kernel frees its memory in a moment, and nobody may be left behind.
        """
        import trio

        with trio.CancelScope(shield=True):
            await self._end()
        status = self._process.wait()  # known by now
        if status < 0:
            return f"the worker process was killed by {signal.Signals(-status).name}"
        return f"the worker process exited with status {status}"

    async def _end(self) -> None:
        import trio

        await trio.aclose_forcefully(self.stream)
        # It may just have exited by itself, having said all it had to say; then its own status is worth more.
        with trio.move_on_after(0.2):
            while self._process.poll() is None:  # noqa: ASYNC110 - a process gives no event that every system has
                await trio.sleep(0.01)
        self._process.kill()
        await trio.to_thread.run_sync(self._process.wait)
