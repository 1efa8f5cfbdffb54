"""One server process after another on the same sockets: this one, the one before it, and the one that follows.

The next process is started with the same command line and inherits the sockets and a link. It loads its model, listens
to nobody yet, and says `ready`; whatever goes wrong before ends it alone. The old one then stops accepting and says
`go`: connections that come in between wait in the sockets' queues, so none is refused and only one process accepts
(several web processes of both for a moment).
Each answer stays with the process that began it. Batches are run by one process at a time, in its turn.

At most two processes of a line live at once. The first, whose number service managers watch, ends as the waiter of
those that follow (waiter.py).
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ..protocol.settings import ServeSettings
from . import waiter
from .inheritance import READY, VARIABLE, Inheritance, address_of, inheritance
from .upgrade_note import BEGUN

if TYPE_CHECKING:
    from ..actors.observe.server import Server

LINGER_SECONDS: Final = 3.0  # in which connections that the old process has accepted may still ask
START_SECONDS: Final = 3600.0  # for the new one: it may fetch its model
END_SECONDS: Final = 10.0  # for one that failed to end by itself
ASK_SECONDS: Final = 0.05  # between looks at a server's health
GO: Final = b"go"
_PR_SET_CHILD_SUBREAPER: Final = 36
_WAITER: Final = Path(waiter.__file__).read_text(encoding="utf-8")  # now: a new version may take the file's place


class NotFollowed(Exception):
    """No new process has taken over; this one goes on."""


class Succession:
    """This process's place in the line."""

    def __init__(self, settings: ServeSettings, inherited: Inheritance | None = None) -> None:
        self.sockets: list[list[socket.socket]] = []  # that listen, one list for each process that accepts
        self.begun = trio.Event()  # this process's turn
        self.over = trio.Event()  # and its end: another one has taken over
        self._settings = settings
        self._inherited = inherited
        self._heir: subprocess.Popen[bytes] | None = None
        self._to_heir: trio.SocketStream
        self._heirs: tuple[int, int] | None = None  # the pipe, made by the first process
        self._before: socket.socket | None = None
        self._late: list[int] = []
        if inherited is None:
            self.begun.set()
        else:
            self.sockets = [[socket.socket(fileno=number) for number in each] for each in inherited.sockets]

    @property
    def follows(self) -> bool:
        return self._inherited is not None

    @property
    def has_turn(self) -> bool:
        """Whether the connections are this process's: one that failed to take over leaves everything in place."""
        return self.begun.is_set() and not self.over.is_set()

    @property
    def heir(self) -> int | None:
        """The number of the process that has taken over."""
        return self._heir.pid if self._heir is not None and self.over.is_set() else None

    # Towards the process before.

    async def take_over(self, engine: "Server") -> None:
        """Return when this process is to accept connections: at once for the first, else when it is ready and told."""
        if self._inherited is not None:
            await engine.loaded.wait()
            while not (await engine.health()).ready:  # noqa: ASYNC110  # it is a question
                await trio.sleep(ASK_SECONDS)
            await self.take_turn()

    async def take_turn(self) -> None:
        """Say that this process is ready, and wait until the one before accepts no more."""
        if self._inherited is None:
            return
        self._before = link = socket.socket(fileno=self._inherited.link)
        link.setblocking(False)
        with suppress(OSError):  # it is gone, or goes meanwhile: then this process serves alone
            link.send(READY)
            await trio.lowlevel.wait_readable(link)
            link.recv(len(GO))
        self.begun.set()

    def _follows_a_living_one(self) -> bool:
        try:
            return self._before is not None and bool(self._before.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    # Towards the next process.

    async def follow(self, told_to_end: Callable[[], bool], tell: Callable[[str, str], None]) -> None:
        """Start the next process, and return when it is ready. Raises NotFollowed."""
        if self._heir is not None:
            raise NotFollowed("an upgrade is under way, or the old server still finishes its answers; wait for its end")
        if self._follows_a_living_one():
            raise NotFollowed("the server before this one still finishes its answers; wait for its end")
        try:
            self._heir = self._start()
            tell(BEGUN, f"process {self._heir.pid}; it loads its model")
            await self._hear_ready()
            if told_to_end():
                raise NotFollowed("the server was told to end")
            with suppress(OSError):  # the first of the line is gone
                os.write(self._pipe(), b"%d\n" % self._heir.pid)
            self.over.set()
        finally:
            if not self.over.is_set():
                self._give_up()

    def _start(self) -> "subprocess.Popen[bytes]":
        ours, theirs = socket.socketpair()
        with theirs:
            given = Inheritance(
                address=address_of(self._settings),
                sockets=tuple(tuple(sock.fileno() for sock in each) for each in self.sockets),
                link=theirs.fileno(),
                heirs=self._pipe(),
            )
            passed = [given.link, given.heirs, *(number for each in given.sockets for number in each)]
            environment = os.environ | {VARIABLE: msgspec.json.encode(given).decode()}
            try:
                heir = subprocess.Popen(_command(), pass_fds=passed, env=environment, stdin=subprocess.DEVNULL)
                self._to_heir = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                return heir
            except OSError as error:
                ours.close()
                raise NotFollowed(f"{_command()[0]} cannot be run: {error.strerror}") from error

    def _pipe(self) -> int:
        if self._inherited is not None:
            return self._inherited.heirs
        if self._heirs is None:
            self._heirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return self._heirs[1]

    async def _hear_ready(self) -> None:
        assert self._heir is not None
        said = b""
        with trio.move_on_after(START_SECONDS) as limit, suppress(trio.BrokenResourceError):
            while data := await self._to_heir.receive_some():
                said += data
                if said == READY:
                    return
        if limit.cancelled_caught:
            raise NotFollowed(f"the new server was not ready within {START_SECONDS:g} s")
        with trio.move_on_after(END_SECONDS):
            while self._heir.poll() is None:  # noqa: ASYNC110 - a process gives no event that every system has
                await trio.sleep(ASK_SECONDS)
        status = self._heir.returncode
        how = f"was killed by {signal.Signals(-status).name}" if (status or 0) < 0 else f"ended with status {status}"
        raise NotFollowed(said.decode(errors="replace").strip() or f"the new server {how}; its messages are in the log")

    def _give_up(self) -> None:
        if self._heir is not None:
            self._heir.kill()  # its worker ends with it
            self._heir.wait()  # at once
            self._to_heir.socket.close()
        self._heir = None

    def close_sockets(self) -> None:
        """This process's copies: those of others go on."""
        for sock in [sock for each in self.sockets for sock in each]:
            sock.close()

    async def let_go(self) -> None:
        """This process accepts no more."""
        with suppress(trio.BrokenResourceError):
            await self._to_heir.send_all(GO)

    async def wait_heir_gone(self) -> None:
        with suppress(trio.BrokenResourceError):
            while await self._to_heir.receive_some():
                pass

    def tell_heir_to_end(self) -> None:
        """This process is told to. One with a waiter leaves it to that one to tell those that serve."""
        if self._heir is not None and not (self.follows and self.over.is_set()):
            self._heir.send_signal(waiter.TOLD_TO_END)

    def keep_signal(self, number: int, frame: object) -> None:
        """A signal that comes when nobody heeds signals any more; the waiter does."""
        self._late.append(number)

    async def in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run what only one process of the line may run at a time, as long as it is this one's turn."""
        await self.begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await self.over.wait()
            nursery.cancel_scope.cancel()

    def leave(self) -> None:
        """End this process if another one has taken over: the first one of the line becomes its waiter."""
        if self._heir is None or not self.over.is_set():
            return
        if (status := self._heir.poll()) is not None:
            os._exit(status if status >= 0 else 128 - status)
        if self._heirs is None:
            os._exit(0)
        arguments = [str(self._heir.pid), str(self._heirs[0]), waiter.NAME]
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.set_inheritable(self._heirs[0], True)
        signal.pthread_sigmask(signal.SIG_BLOCK, waiter.SIGNALS)
        for number in self._late:
            signal.pthread_kill(threading.get_ident(), number)  # pending, also in the waiter
        with suppress(OSError):  # the interpreter is gone: an environment was deleted
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _WAITER, *arguments])
        os._exit(waiter.wait_for(self._heir.pid, self._heirs[0]))


def succession_of(settings: ServeSettings) -> Succession:
    """That of this process."""
    return Succession(settings, inheritance())


def _command() -> list[str]:
    """The command line of this process, run again: a console script anew, so that a link to it may lead elsewhere."""
    program = Path(sys.argv[0])
    if program.is_file() and os.access(program, os.X_OK):
        return [str(program), *sys.argv[1:]]
    return [sys.executable, *sys.orig_argv[1:]]
