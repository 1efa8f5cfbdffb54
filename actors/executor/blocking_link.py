"""The worker's end of the link: the same frames as link.py, read by one thread, written by any, without an event loop.

An event loop between a computing thread and the socket costs two more wake-ups per message, and the step thread stands
still while the loop holds the GIL. Threads that block in the socket cost nothing.
"""

import select
import socket
import threading
from typing import Final, Generic, TypeVar

import msgspec

from ...protocol.message import Message
from ..supervisor.frame import HEADER, MAX_FRAME, UNREADABLE, FrameWriter, LinkError

Received = TypeVar("Received", bound=Message)

_READ: Final = 1 << 16


class BlockingLink(Generic[Received]):
    """One end of the connection; `decoder` knows the union of the messages that may arrive.

    When the peer ends, for any reason, the reader gets an EOFError and a writer an OSError.
    """

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._socket = sock
        self._decode = decoder.decode
        self._incoming = bytearray()
        self._outgoing = FrameWriter()
        self._writing = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message and wait until the socket has taken it."""
        with self._writing:
            self._socket.sendall(self._outgoing.write(message))

    def receive(self) -> Received:
        """The next message."""
        size = int.from_bytes(self._read_exactly(HEADER), "big")
        if size > MAX_FRAME:
            raise LinkError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
        frame = self._read_exactly(size)
        try:
            return self._decode(frame)
        except UNREADABLE as error:
            raise LinkError(f"a frame of {size} bytes is no message: {error}") from error

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` for a message, its beginning or the end; returns whether there is one."""
        return bool(self._incoming or select.select([self._socket], [], [], seconds)[0])

    def _read_exactly(self, size: int) -> bytes:
        while len(self._incoming) < size:
            some = self._socket.recv(_READ)
            if not some:
                raise EOFError
            self._incoming += some
        taken = bytes(memoryview(self._incoming)[:size])
        del self._incoming[:size]
        return taken
