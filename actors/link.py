"""Typed messages over a byte stream between front and worker: a length, then one msgpack value of a tagged Struct.

The length is four bytes, big-endian, and capped: whoever reads a longer one has lost the frame border, and stops
instead of allocating. One task sends and one receives. The peer's end, however it comes, is `trio.EndOfChannel` to the
reader and `trio.BrokenResourceError` to the writer.
"""

from typing import Final, Generic, TypeVar

import msgspec
import trio

from ..protocol.message import Message

Received = TypeVar("Received", bound=Message)

HEADER: Final = 4
# The largest message is the first step after a restart: 64 sequences of 131,072 tokens at 5 bytes each are 42 MB.
MAX_FRAME: Final = 64 << 20
_READ: Final = 1 << 16


class LinkError(Exception):
    """What came is no message of the conversation."""


class Link(Generic[Received]):
    """One end of the connection; `decoder` knows the union of the messages that may arrive."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, decoder: msgspec.msgpack.Decoder[Received]) -> None:
        self._stream = stream
        self._decode = decoder.decode
        self._encoder = msgspec.msgpack.Encoder()
        self._outgoing = bytearray()
        self._incoming = bytearray()

    async def send(self, message: Message) -> None:
        """Send one message and wait until the socket took it."""
        self._encoder.encode_into(message, self._outgoing, HEADER)
        size = len(self._outgoing) - HEADER
        if size > MAX_FRAME:
            raise LinkError(f"a {type(message).__name__} of {size} bytes exceeds the frame limit of {MAX_FRAME}")
        self._outgoing[:HEADER] = size.to_bytes(HEADER, "big")
        await self._stream.send_all(self._outgoing)

    async def receive(self) -> Received:
        """The next message."""
        size = int.from_bytes(await self._take(HEADER), "big")
        if size > MAX_FRAME:
            raise LinkError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
        frame = await self._take(size)
        try:
            return self._decode(frame)
        except msgspec.DecodeError as error:
            raise LinkError(f"a frame of {size} bytes is no message: {error}") from error

    async def _take(self, size: int) -> bytes:
        """The next `size` bytes; checkpoints only when they have not come yet."""
        while len(self._incoming) < size:
            try:
                some = await self._stream.receive_some(_READ)
            except trio.BrokenResourceError:
                some = b""
            if not some:
                raise trio.EndOfChannel
            self._incoming += some
        taken = bytes(memoryview(self._incoming)[:size])
        del self._incoming[:size]
        return taken

    async def aclose(self) -> None:
        await self._stream.aclose()
