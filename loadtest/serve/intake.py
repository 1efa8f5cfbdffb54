"""One loop that reads many sockets: a piece of text costs one `recv` and a call, and wakes no task.

Waiting for a socket in trio costs two system calls and a switch of tasks each time. Sockets that stream are instead in
an epoll of their own, which trio waits for as one; what arrived is handed to a function where it is read. Measured
in turns on a busy machine, 256 streams of 40 tokens a second: 22 to 36 µs of CPU a token (median 29), against 34 to 42
(34) with a waiting task for each.
"""

import select
import socket
from collections.abc import Callable
from typing import Final

import trio

RECEIVE_BYTES: Final = 65536
MOST_READY: Final = 512  # sockets read before other tasks have their turn

Take = Callable[[bytes], bool]  # what came (b"" at the end); True when nothing more is wanted


class _Followed:
    __slots__ = ("connection", "done", "error", "take")

    def __init__(self, connection: socket.socket, take: Take) -> None:
        self.connection = connection
        self.take = take
        self.done = trio.Event()
        self.error: Exception | None = None


class Intake:
    """`run` is a task beside those that follow."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._followed: dict[int, _Followed] = {}

    async def follow(self, connection: socket.socket, take: Take) -> None:
        """Calls `take` with whatever comes until it returns True. What it raises, or OSError, is raised here."""
        number = connection.fileno()
        followed = _Followed(connection, take)
        self._followed[number] = followed
        self._epoll.register(number, select.EPOLLIN)
        try:
            await followed.done.wait()
        finally:
            self._epoll.unregister(number)
            del self._followed[number]
        if followed.error is not None:
            raise followed.error

    async def run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())  # others have their turn here
                for number, _ in self._epoll.poll(0, MOST_READY):
                    followed = self._followed[number]
                    if not followed.done.is_set():
                        self._read(followed)
        finally:
            self._epoll.close()

    def _read(self, followed: _Followed) -> None:
        try:
            if followed.take(followed.connection.recv(RECEIVE_BYTES)):
                followed.done.set()
        except BlockingIOError:
            pass  # woken for nothing
        except Exception as error:
            followed.error = error
            followed.done.set()
