"""The body of an upload: passed on piece by piece while it arrives, and never held as a whole.

The reader of the connection waits until the handler has taken a piece, so a slow disk slows the client down. An upload
has BODY_SECONDS, and one second more for each KiB of it that has arrived, like every body.
"""

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

import trio
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from ..protocol.errors import ApiError
from .arriving_body import BODY_SECONDS, SLOWEST

PIECE: Final = 64 * 1024  # bytes that are parsed at once
MOST_HEADER_BYTES: Final = 256 * 1024  # of a part's head, or before the first part; with the piece that is parsed
MOST_FIELD_BYTES: Final = 1024  # of a value that is not a file
MOST_PARTS: Final = 16
LONGEST_BOUNDARY: Final = 256  # bytes of its line; RFC 2046 allows 70 and a few


class ArrivingUpload:
    """Whoever reads the connection calls `add` and `end`; the handler reads `pieces`."""

    def __init__(self) -> None:
        self._pieces, self._taken = trio.open_memory_channel[bytes](0)
        self._deadline = trio.current_time() + BODY_SECONDS

    async def add(self, piece: bytes) -> None:
        """Waits until the handler takes it; it is dropped if nobody will."""
        self._deadline += len(piece) / SLOWEST
        try:
            await self._pieces.send(piece)
        except trio.BrokenResourceError:
            await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """The last piece was added."""
        self._pieces.close()

    async def take(self) -> bytes | None:
        """The next piece, or None after the last. Raises ApiError (408)."""
        with trio.move_on_at(self._deadline):
            try:
                return await self._taken.receive()
            except trio.EndOfChannel:
                return None
        raise ApiError("request_timeout", "The body did not arrive in time.")

    def release(self) -> None:
        """Nobody reads it any more."""
        self._taken.close()


class FormField(NamedTuple):
    """A value of the form."""

    name: str
    value: str


class FilePart(NamedTuple):
    """The form's file begins; its bytes follow."""

    name: str
    filename: str


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """What the decoder may have now, and what it must not see yet.

    If its input ends one byte behind a boundary, werkzeug 3.1 takes the line break before the boundary for content. So
    it gets whole lines, and the rest of a line once that is too long for a boundary's.
    """
    end = data.rfind(b"\n") + 1
    return (data, b"") if len(data) - end > LONGEST_BOUNDARY else (data[:end], data[end:])


async def read_form(upload: ArrivingUpload, boundary: str) -> AsyncGenerator[FormField | FilePart | bytes]:
    """The parts of multipart/form-data in their order. Raises ApiError (400, 408)."""
    decoder = MultipartDecoder(boundary.encode("latin-1"), MOST_HEADER_BYTES, max_parts=MOST_PARTS)
    field: str | None = None  # whose value arrives; None: a file's
    value = bytearray()
    ended, held = False, b""
    while not ended:
        piece = await upload.take()
        ended = piece is None
        lines: list[bytes | None] = [held, None] if piece is None else []
        for start in range(0, len(piece or b""), PIECE):
            whole, held = _cut(held + (piece or b"")[start : start + PIECE])
            lines.append(whole)
        try:
            for some in lines:
                decoder.receive_data(some)
                while True:
                    match decoder.next_event():
                        case NeedData():
                            break
                        case Epilogue():
                            return
                        case Field(name=name):
                            field, value = name or "", bytearray()  # werkzeug: None without a name
                        case File(name=name, filename=filename):
                            field = None
                            yield FilePart(name or "", filename)
                        case Data(data=data) if field is None:
                            yield bytes(data)
                        case Data(data=data, more_data=more) if field is not None:
                            value += data
                            if len(value) > MOST_FIELD_BYTES:
                                text = f"{field}: a value may have at most {MOST_FIELD_BYTES} bytes."
                                raise ApiError("invalid_value", text, param=field)
                            if not more:
                                yield FormField(field, value.decode())
                        case _:
                            pass
        except (ValueError, AttributeError, RequestEntityTooLarge) as error:
            problem = "too many parts, or too long a head of one" if isinstance(error, RequestEntityTooLarge) else error
            raise ApiError("bad_request", f"The body is not valid multipart/form-data: {problem}.") from None
