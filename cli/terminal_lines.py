"""Lines from standard input without a thread: a read that Ctrl-C can end, from a terminal, a pipe or a file."""

import os
import stat
from typing import Final

import trio

_READ: Final = 64 * 1024


class TerminalLines:
    """Line by line from a file descriptor that nobody else reads. The terminal itself offers the editing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        # A regular file is always readable, and epoll takes none.
        self._waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)

    async def read(self) -> str | None:
        """The next line without its end, or None when there is no more."""
        while b"\n" not in self._buffer:
            if self._waits:
                await trio.lowlevel.wait_readable(self._descriptor)
            else:
                await trio.lowlevel.checkpoint()
            data = os.read(self._descriptor, _READ)
            if not data:
                rest, self._buffer = self._buffer, b""
                return rest.decode(errors="replace") if rest else None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")
