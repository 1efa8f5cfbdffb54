"""The metadata of a GGUF file: a mapping from key to value, read where it lies when it is asked for.

Walking over a value costs no memory: strings stay in the file, so a vocabulary of a million of them is skipped, not
built. A value is any of the format's types: integers, floats, bool, str, and lists of these or of lists.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from typing import Final

from msgspec import Struct

from ...errors import CheckpointError

MAX_HEADER_BYTES: Final = 256 << 20  # of metadata and tensor descriptions together; the largest known have 40 MB
MAX_KEYS: Final = 1 << 14  # models have some 40
MAX_KEY_BYTES: Final = 1 << 10
MAX_LENGTH: Final = 1 << 20  # elements of one array: four times the largest vocabulary
MAX_STRINGS: Final = 1 << 21  # in arrays of the whole file: they are walked one by one, 0.15 us each
ARRAY_COST: Final = 16  # strings: what walking over an array within an array costs
MAX_NESTING: Final = 3  # arrays of arrays of arrays
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: Final[dict[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_LENGTH: Final = struct.Struct("<Q")
_TYPE: Final = struct.Struct("<I")
_ARRAY_HEAD: Final = struct.Struct("<IQ")
Value = int | float | bool | str | list["Value"]


class Place(Struct, frozen=True):
    """A value's type and where it begins in the file."""

    kind: int
    position: int


class Cursor:
    """A position in a header. Everything it passes is within the file and within the bounds above."""

    def __init__(self, data: mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.position = 0
        self._end = min(len(data), MAX_HEADER_BYTES)
        self._strings = MAX_STRINGS

    def advance(self, count: int, what: str) -> int:
        """Pass `count` bytes; returns where they begin."""
        begin = self.position
        if count > self._end - begin:
            beyond = "the file is truncated" if self._end == len(self.data) else f"more than {MAX_HEADER_BYTES} bytes"
            raise CheckpointError(f"{self.file}: {what}", count, f"bytes at {begin} go beyond the header: {beyond}")
        self.position = begin + count
        return begin

    def integer(self, layout: struct.Struct, what: str) -> int:
        (value,) = layout.unpack_from(self.data, self.advance(layout.size, what))
        return int(value)

    def count(self, most: int, what: str) -> int:
        """A 64-bit number that may be at most `most`."""
        value = self.integer(_LENGTH, what)
        if value > most:
            raise CheckpointError(f"{self.file}: {what}", value, f"at most {most} are read: the file is damaged")
        return value

    def name(self, most: int, what: str) -> str:
        """A string of at most `most` bytes."""
        length = self.count(most, f"length of {what}")
        begin = self.advance(length, what)
        return _text(self.data[begin : self.position], f"{self.file}: {what}")

    def skip(self, kind: int, key: str, depth: int = 0) -> None:
        """Pass a value, checking that it is whole."""
        if kind in SCALARS:
            self.advance(struct.calcsize(SCALARS[kind]), key)
        elif kind == STRING:
            self._skip_strings(1, key)
        elif kind != ARRAY:
            raise CheckpointError(f"{self.file}: {key}", kind, "unknown type of a metadata value")
        elif depth == MAX_NESTING:
            raise CheckpointError(f"{self.file}: {key}", depth, "arrays are nested too deeply")
        else:
            inner, length = self.integer(_TYPE, key), self.count(MAX_LENGTH, key)
            if inner in SCALARS:
                self.advance(length * struct.calcsize(SCALARS[inner]), key)
                return
            self._strings -= length if inner == STRING else ARRAY_COST * length
            if self._strings < 0:
                raise CheckpointError(f"{self.file}: {key}", length, f"more than {MAX_STRINGS} strings in arrays")
            if inner == STRING:
                self._skip_strings(length, key)
                return
            for _ in range(length):
                self.skip(inner, key, depth + 1)

    def _skip_strings(self, count: int, key: str) -> None:
        position, end, unpack, data = self.position, self._end, _LENGTH.unpack_from, self.data
        for _ in range(count):
            if position > end - 8:
                position = end + 1
                break
            position += 8 + unpack(data, position)[0]
        self.advance(position - self.position, key)


class Metadata(Mapping[str, Value]):
    """What a file says about itself. A value is read anew each time: keep what is large and used twice."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        """Walks over `count` pairs."""
        self._data, self._file = cursor.data, cursor.file
        self._places: dict[str, Place] = {}
        for index in range(count):
            key = cursor.name(MAX_KEY_BYTES, f"key {index}")
            if key in self._places:
                raise CheckpointError(f"{cursor.file}: key", key, "occurs twice")
            kind = cursor.integer(_TYPE, f"type of {key}")
            self._places[key] = Place(kind, cursor.position)
            cursor.skip(kind, key)

    def __getitem__(self, key: str) -> Value:
        """Raises KeyError, and CheckpointError for text that is not UTF-8 and truth values that are not 0 or 1."""
        place = self._places[key]
        return self._read(place.kind, place.position, key)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _read(self, kind: int, begin: int, key: str) -> tuple[Value, int]:
        """A value that was walked over before, and where it ends."""
        data = self._data
        if kind == STRING:
            end = begin + 8 + _LENGTH.unpack_from(data, begin)[0]
            return _text(data[begin + 8 : end], f"{self._file}: {key}"), end
        if kind != ARRAY:
            values, end = self._numbers(kind, begin, 1, key)
            return values[0], end
        inner, length = _ARRAY_HEAD.unpack_from(data, begin)
        begin += _ARRAY_HEAD.size
        if inner in SCALARS:
            return self._numbers(inner, begin, length, key)
        if inner == STRING:
            return self._strings(begin, length, key)
        found: list[Value] = []
        for _ in range(length):
            value, begin = self._read(inner, begin, key)
            found.append(value)
        return found, begin

    def _strings(self, begin: int, count: int, key: str) -> tuple[list[Value], int]:
        """A vocabulary and its merges are half a million: this loop is most of the time of opening a tokenizer."""
        data, unpack, values = self._data, _LENGTH.unpack_from, list[Value]()
        try:
            for _ in range(count):
                end = begin + 8 + unpack(data, begin)[0]
                values.append(data[begin + 8 : end].decode())
                begin = end
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self._file}: {key}", error.object[:100], f"is not UTF-8 ({error.reason})"
            ) from None
        return values, begin

    def _numbers(self, kind: int, begin: int, count: int, key: str) -> tuple[list[Value], int]:
        layout = struct.Struct(f"<{count}{SCALARS[kind]}")
        values: list[Value] = list(layout.unpack_from(self._data, begin))
        if kind == BOOL:
            if any(value not in (0, 1) for value in values):
                raise CheckpointError(f"{self._file}: {key}", "other than 0 and 1", "is no truth value")
            values = [value == 1 for value in values]
        return values, begin + layout.size


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(what, data[:100], f"is not UTF-8 ({error.reason})") from None
