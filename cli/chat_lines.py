"""Questions from a pipe or a file, one a line. Questions from a terminal: chat_prompt.py."""

import os
import stat
from typing import Final

import trio

_READ: Final = 64 * 1024


class PlainLines:
    """Reads lines from a file descriptor. It uses no thread, so that a signal can end a read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        # Files and /dev/null are always readable, and epoll does not accept them.
        mode = os.fstat(descriptor).st_mode
        self._waits = not stat.S_ISREG(mode) and (not stat.S_ISCHR(mode) or os.isatty(descriptor))

    async def read(self, default: str = "") -> str | None:
        """The next line without its line end, or None at the end of the input. Nothing is edited here: no `default`."""
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
