"""A bounded reader of protocol buffers: the fields of one message, with their numbers. It knows no schema.

Wire format: https://protobuf.dev/programming-guides/encoding/. Groups, which nothing uses any more, are refused.
"""

import struct
from collections.abc import Iterator
from typing import Final

from ...errors import CheckpointError

_VARINT: Final = 0
_BYTES: Final = 2
_SIZES: Final = {1: 8, 5: 4}  # of the numbers with a fixed size
_FLOAT: Final = struct.Struct("<f")
Value = int | bytes  # a varint, unsigned; or the bytes of anything else


def fields(data: bytes, file: str) -> Iterator[tuple[int, Value]]:
    """Number and value of each field, in order. Raises CheckpointError if it is cut off or no message at all."""
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        if key < 0x80:  # nearly always: a vocabulary has a million fields
            at += 1
        else:
            key, at = _varint(data, at, file)
        wire = key & 7
        if wire == _BYTES:
            size, at = _varint(data, at, file)
        elif wire in _SIZES:
            size = _SIZES[wire]
        elif wire == _VARINT:
            number, at = _varint(data, at, file)
            yield key >> 3, number
            continue
        else:
            raise CheckpointError(file, f"wire type {wire}", "is not read; the file is damaged, or of another kind")
        if size > end - at:
            raise CheckpointError(file, f"{size} bytes at {at}", f"go beyond the end, {end}; the file is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int, file: str) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and where the next byte is."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise CheckpointError(file, f"number at {at}", "has no end; the file is damaged")


def integer(value: Value, file: str) -> int:
    """A signed integer, a truth value or an enumeration's number."""
    if not isinstance(value, int):
        raise CheckpointError(file, value, "expected an integer")
    return value - (1 << 64) if value >> 63 else value


def float32(value: Value, file: str) -> float:
    if isinstance(value, int) or len(value) != _FLOAT.size:
        raise CheckpointError(file, value, "expected a float")
    return float(_FLOAT.unpack(value)[0])


def content(value: Value, file: str) -> bytes:
    """Bytes, a text or a message."""
    if isinstance(value, int):
        raise CheckpointError(file, value, "expected bytes")
    return value


def text(value: Value, file: str) -> str:
    try:
        return content(value, file).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(file, value, f"is not UTF-8 ({error.reason})") from None
