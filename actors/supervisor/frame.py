"""The wire format of messages between processes: four bytes of length, big-endian, then msgpack.

Free of trio, so that a worker's first message can be written before the front has imported its event loop.
"""

from typing import Final

import msgspec

from ...protocol.message import Message

HEADER: Final = 4
# The largest message is the first step after a restart: 64 sequences of 131,072 tokens at 5 bytes each are 42 MB.
MAX_FRAME: Final = 64 << 20
# For bytes that are no message; of text that is no UTF-8, and of deep nesting, msgspec raises what Python does.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class LinkError(Exception):
    """A received or outgoing message is not valid on this link."""


class FrameWriter:
    """Encodes messages into one reused buffer."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def write(self, message: Message) -> bytearray:
        """The frame of a message; valid until the next call."""
        self._encoder.encode_into(message, self._buffer, HEADER)
        size = len(self._buffer) - HEADER
        if size > MAX_FRAME:
            raise LinkError(f"a {type(message).__name__} of {size} bytes exceeds the frame limit of {MAX_FRAME}")
        self._buffer[:HEADER] = size.to_bytes(HEADER, "big")
        return self._buffer
